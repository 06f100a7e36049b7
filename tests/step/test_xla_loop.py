"""``model.jit_compile = "loop"``: whole calls as one XLA program over blocks of batches."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import Callback, SimpleTrainer, SyncReplicatedTrainer
from prototrain.callbacks import DumpTensors, SaveOnExit, StopOnNaN
from prototrain.errors import ConfigError, NonFiniteError
from tests.conftest import ROOT
from tests.step.test_calls import AllLosses, numbered_datasets, poisoned
from tests.tiny import Losses, Recorder, classifier, tiny_arrays, tiny_datasets, tiny_model, values

STEPS = 13


@classifier
def plain_build(x: Any, train_phase: bool) -> Any:
    """One layer, which XLA compiles fast, without dropout: XLA draws other random numbers."""
    return keras.layers.Dense(2, name="logits")(x)


@classifier
def small_build(x: Any, train_phase: bool) -> Any:
    dropped = keras.layers.Dropout(0.2, name="dropout")(x, training=train_phase)
    return keras.layers.Dense(2, name="logits")(dropped)


def shuffled() -> dict[str, Any]:
    arrays = tf.data.Dataset.from_tensor_slices(tiny_arrays())
    return {"trn": arrays.shuffle(40).batch(8, drop_remainder=True)}


def repeated() -> dict[str, Any]:
    return {"trn": shuffled()["trn"].repeat().prefetch(tf.data.AUTOTUNE)}


def generated() -> dict[str, Any]:
    arrays = tiny_arrays()

    def examples() -> Iterator[dict[str, Any]]:
        return ({name: array[row] for name, array in arrays.items()} for row in range(40))

    spec = {name: tf.TensorSpec(array.shape[1:], array.dtype) for name, array in arrays.items()}
    return {"trn": tf.data.Dataset.from_generator(examples, output_signature=spec).batch(8, drop_remainder=True)}


def trainer(experiment: Path | None = None, *, loop: Any = "loop", **model: Any) -> SimpleTrainer:
    model = {"datasets": shuffled, "build": small_build, "model__jit_compile": loop, **model}
    return SimpleTrainer(tiny_model(**model), experiment=experiment)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prototrain.data.iterator.LONGEST_BLOCK", 3)


def test_steps_equal_the_plain_loop() -> None:
    losses = []
    for loop in (False, "loop"):
        made = trainer(loop=loop, datasets=generated, build=plain_build)
        noted = Losses()
        made.train([noted], max_steps=STEPS)
        losses.append(list(noted.by_step.values()))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)
    other = trainer(datasets=generated, build=plain_build)
    other.train([Recorder().every(steps=5)], max_steps=STEPS)
    assert values(other) == values(made) and other.data.block == 3


@pytest.mark.parametrize("datasets", [repeated, generated])
def test_resume_within_a_block_and_at_the_end_of_a_pass(
    datasets: Any, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    straight = trainer(datasets=datasets)
    straight.train([], max_steps=STEPS)
    for steps in (5, 7, STEPS):
        part = trainer(experiment, datasets=datasets)
        part.train([SaveOnExit()], max_steps=steps)
    assert values(part) == values(straight)
    assert part.data.caveat is None and "WARNING" not in capsys.readouterr().out


def test_next_batch_from_blocks() -> None:
    batches = []
    for loop in (False, "loop"):
        made = trainer(loop=loop, datasets=generated)
        made.train([], max_steps=2)
        batches.append([made.next_batch()["x"].numpy().tolist() for _ in range(5)])
    assert batches[0] == batches[1]


def test_resume_with_the_other_form(experiment: Path) -> None:
    noted = []
    for directory, parts in (
        (experiment / "straight", [(False, STEPS)]),
        (experiment / "parts", [(False, 4), ("loop", 9), (False, STEPS)]),
    ):
        losses = Losses()
        for loop, steps in parts:
            part = trainer(directory, loop=loop, build=plain_build)  # of shuffled data
            part.train([SaveOnExit(), losses], max_steps=steps)
            assert part.data.caveat is None
        noted.append(list(losses.by_step.values()))
    np.testing.assert_allclose(noted[1], noted[0], rtol=1e-3)


def numbered() -> dict[str, Any]:
    return {"trn": numbered_datasets()["trn"].unbatch().batch(8, drop_remainder=True)}


def test_infinite_loss_ends_the_run_without_the_update() -> None:
    good = trainer(datasets=numbered, build=small_build)
    good.train([StopOnNaN()], max_steps=7)
    bad = trainer(datasets=numbered, build=poisoned(8, build=small_build))
    all_losses = AllLosses()
    with pytest.raises(NonFiniteError, match=r"in step 8 \(loss inf"):
        bad.train([StopOnNaN(), all_losses], max_steps=STEPS)
    assert len(all_losses.losses) == 7 and np.isfinite(all_losses.losses).all()
    assert bad.global_step == 7 and values(bad) == values(good)


def with_summary(inputs: Any, train_phase: bool) -> Any:
    tf.summary.scalar("here", 1.0)
    return small_build(inputs, train_phase)


def with_strings(inputs: Any, train_phase: bool) -> Any:
    length = tf.cast(tf.strings.length(tf.as_string(inputs["x"])), tf.float32)
    return small_build({**inputs, "x": inputs["x"] + length}, train_phase)


@pytest.mark.parametrize(
    ("model", "callbacks", "said"),
    [
        ({"datasets": tiny_datasets}, [], "fixed shape.*drop_remainder"),
        ({"build": with_summary}, [], "tf.summary"),
        ({"build": with_strings}, [], "XLA cannot compile"),
        ({}, [DumpTensors(["logits"]).every(steps=2)], "watches logits"),
    ],
)
def test_errors(model: Any, callbacks: list[Callback], said: str, experiment: Path) -> None:
    with pytest.raises(ConfigError, match=f"loop.*{said}"):
        trainer(experiment, **model).train(callbacks, max_steps=4)


def test_several_towers_and_python_steps_are_errors() -> None:
    class InPython(SimpleTrainer):
        def run_step(self) -> None:
            self.next_batch()

    model = tiny_model(model__jit_compile="loop", datasets=shuffled)
    for make in (lambda: SyncReplicatedTrainer(model, "cpu:2"), lambda: InPython(model)):
        with pytest.raises(ConfigError, match=r"loop.*one tower"):
            make()


PROGRAM = """
from tests.step.test_xla_loop import trainer
from tests.tiny import Recorder

made = trainer()
for number, steps in enumerate((4, 11, 30)):
    made.train([Recorder().every(steps=number + 2)], max_steps=steps)
"""


def test_one_xla_compilation_for_all_call_lengths(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": f"--xla_dump_to={tmp_path}"},
        check=True,
    )
    dumped = [file.name for file in tmp_path.glob("*_program_*.before_optimizations.txt")]
    assert len(dumped) == 3, "one program for each call of train()"
