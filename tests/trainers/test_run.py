"""Missing checkpoints, directories and memory."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import Callback
from prototrain.callbacks import JSONWriter, ModelSaver, SaveOnExit, Summaries, TensorBoardWriter
from prototrain.errors import CheckpointError, ExperimentError
from prototrain.experiment.record import read_attempts
from prototrain.system.tracebacks import for_terminal
from tests.tiny import At, CountingTrainer, failing, tiny_build, tiny_trainer


def writers() -> list[Callback]:
    return [Summaries().every(steps=2), JSONWriter()]


def killed(experiment: Path) -> None:
    """Make a run look as if it had been killed before its end was written."""
    record = json.loads((experiment / "run.json").read_text())
    record["parts"][-1].update(state="running", step=None, seconds=None)
    (experiment / "run.json").write_text(json.dumps(record))


def empty(experiment: Path) -> None:
    shutil.rmtree(experiment / "checkpoints")
    (experiment / "checkpoints").mkdir()


LOST: dict[str, Callable[[Path], object]] = {
    "deleted": lambda experiment: shutil.rmtree(experiment / "checkpoints"),
    "deleted after a kill": lambda experiment: (killed(experiment), empty(experiment)),
    "with the record": lambda experiment: (empty(experiment), (experiment / "run.json").unlink()),
    "with a damaged record": lambda experiment: (empty(experiment), (experiment / "run.json").write_text("{")),
}


@pytest.mark.parametrize("lose", LOST.values(), ids=LOST)
def test_lost_checkpoints_are_an_error(lose: Callable[[Path], object], experiment: Path) -> None:
    CountingTrainer(experiment=experiment).train([*writers(), SaveOnExit()], max_steps=6)
    lose(experiment)
    rows = (experiment / "metrics.jsonl").read_bytes()
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"the checkpoints of .* are missing in .*--fresh") as caught:
            CountingTrainer(experiment=experiment).train([*writers(), SaveOnExit()], max_steps=8)
        assert "\n" not in str(caught.value)
    assert (experiment / "metrics.jsonl").read_bytes() == rows
    fresh = CountingTrainer(experiment=experiment)
    fresh.train([*writers(), SaveOnExit()], max_steps=8, fresh=True)
    assert fresh.run.start_row() == "fresh"


def test_set_aside_checkpoints_are_not_missing(experiment: Path) -> None:
    CountingTrainer(experiment=experiment).train([SaveOnExit()], max_steps=6)
    CountingTrainer(experiment=experiment).train([], max_steps=2, resume=False)
    again = CountingTrainer(experiment=experiment)
    again.train([], max_steps=4)
    assert again.run.start_row() == "fresh"


@pytest.mark.parametrize("then", [lambda experiment: None, killed], ids=["no saver", "killed"])
def test_run_without_checkpoints_begins_again(then: Callable[[Path], object], experiment: Path) -> None:
    trainer = CountingTrainer(experiment=experiment)
    trainer.train(writers(), max_steps=4)
    trainer.train(writers(), max_steps=6)  # continues without a checkpoint
    then(experiment)
    again = CountingTrainer(experiment=experiment)
    again.train([*writers(), ModelSaver().every(steps=100)], max_steps=6)
    assert again.run.start_row() == "fresh"
    assert [attempt.has_saved for attempt in read_attempts(experiment / "run.json")] == [False, False, True]


def recreated(directory: Path) -> None:
    shutil.rmtree(directory)
    (directory / "summaries").mkdir(parents=True)


def replaced(directory: Path) -> None:
    shutil.rmtree(directory)
    CountingTrainer(experiment=directory).train([], max_steps=1)


GONE: dict[str, Callable[[Path], object]] = {
    "deleted": shutil.rmtree,
    "moved": lambda directory: directory.rename(directory.with_name("moved")),
    "recreated": recreated,
    "replaced": replaced,
}


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("action", GONE.values(), ids=GONE)
def test_deleted_directory_ends_the_run(action: Callable[[Path], object], saves: bool, experiment: Path) -> None:
    more: list[Any] = [TensorBoardWriter(), ModelSaver().every(steps=4), SaveOnExit()] if saves else []
    trainer = CountingTrainer(experiment=experiment)
    with pytest.raises(ExperimentError, match="was deleted or moved during the run") as caught:
        trainer.train([*writers(), *more, At(3, lambda: action(experiment))], max_steps=8)
    assert "\n" not in str(caught.value)
    assert trainer.global_step == (4 if saves else 8)
    assert not (experiment / "checkpoints").exists()


def test_deleted_lock_is_harmless(experiment: Path) -> None:
    trainer = CountingTrainer(experiment=experiment)
    trainer.train([SaveOnExit(), At(3, lambda: os.remove(experiment / ".lock"))], max_steps=8)
    assert trainer.run.checkpoints.steps() == [8]


_PETABYTES = 10**16  # more than the address space


def big(inputs: Any) -> tf.Tensor:
    """Fails when it is computed, not while it is traced."""
    many = 10000 * (1 + tf.cast(tf.reduce_mean(inputs["x"]) * 0, tf.int32))
    return tf.reduce_sum(tf.zeros([100000, 100000, many, 100]))


def big_build(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    net.loss += 0.0 if tf.executing_eagerly() else big(inputs)
    return net


def in_a_callback() -> None:
    CountingTrainer().train([At(3, lambda: np.ones(_PETABYTES))], max_steps=4)


def in_a_compiled_step() -> None:
    tiny_trainer(build=big_build).train(max_steps=2)


def in_build() -> None:
    tiny_trainer(build=lambda inputs, train_phase: {"loss": big(inputs)})


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        (in_a_callback, r"Unable to allocate .*\(test_run.py, line \d+\)"),
        (in_a_compiled_step, r"step 1 failed in the model: OOM when allocating tensor with shape\["),
        (in_build, r"OOM when .*\(test_run.py, line \d+\)"),
    ],
)
def test_out_of_memory_is_one_line(fail: Callable[[], None], words: str) -> None:
    with pytest.raises(Exception, match=r"OOM|allocate") as raised:
        fail()
    said = for_terminal(raised.value)
    assert re.fullmatch(rf"prototrain: error: out of memory: {words}.*model.accumulate_steps.*\n", said), said


def test_a_run_with_nothing_to_do_keeps_the_record(experiment: Path) -> None:
    def train(steps: int, *more: Callback, **config: Any) -> None:
        tiny_trainer(experiment, **config).train([*writers(), SaveOnExit(), *more], max_steps=steps)

    with pytest.raises(ValueError, match="lost"):
        train(6, failing("after_train", 6, ValueError("lost")))
    train(6)
    assert [attempt.state for attempt in read_attempts(experiment / "run.json")] == ["failed", "finished"]
    record = {name: (experiment / name).read_bytes() for name in ("config.json", "run.json", "environment.json")}
    train(4, model__lr_schedule__constant__value=0.5)
    assert {name: (experiment / name).read_bytes() for name in record} == record
