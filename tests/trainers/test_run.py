"""Missing checkpoints, directories and memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import Callback
from prototrain.callbacks import JSONWriter, ModelSaver, SaveOnExit, Summaries, TensorBoardWriter
from prototrain.errors import CheckpointError, ExperimentError, OutOfMemoryError
from prototrain.experiment.record import read_attempts
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
        with pytest.raises(CheckpointError, match=r"ran 6 steps, but its checkpoints are missing .*--fresh") as caught:
            CountingTrainer(experiment=experiment).train([*writers(), SaveOnExit()], max_steps=8)
        assert "\n" not in str(caught.value)
    assert (experiment / "metrics.jsonl").read_bytes() == rows
    fresh = CountingTrainer(experiment=experiment)
    fresh.train([*writers(), SaveOnExit()], max_steps=8, fresh=True)
    assert fresh.run.resume_line() == "fresh"


def test_set_aside_checkpoints_are_not_missing(experiment: Path) -> None:
    CountingTrainer(experiment=experiment).train([SaveOnExit()], max_steps=6)
    CountingTrainer(experiment=experiment).train([], max_steps=2, resume=False)
    again = CountingTrainer(experiment=experiment)
    again.train([], max_steps=4)
    assert again.run.resume_line() == "fresh"


NEVER_SAVED: dict[str, tuple[Callable[[], list[Callback]], Callable[[Path], object], str]] = {
    "no saver": (writers, lambda experiment: None, "reached step 6 and left no checkpoint: the run begins again"),
    "killed early": (lambda: [*writers(), ModelSaver().every(steps=100)], killed, "and left no checkpoint"),
    "killed at once": (list, killed, "was killed and left no checkpoint"),
}


@pytest.mark.parametrize(("make", "then", "words"), NEVER_SAVED.values(), ids=NEVER_SAVED)
def test_run_without_checkpoints_begins_again(
    make: Any, then: Callable[[Path], object], words: str, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    CountingTrainer(experiment=experiment).train(make()[:2], max_steps=6)
    then(experiment)
    capsys.readouterr()
    again = CountingTrainer(experiment=experiment)
    callbacks = make()
    again.train(callbacks, max_steps=6)
    said = capsys.readouterr().out
    assert said.count("WARNING") == 1 and words in said and again.run.resume_line() == "fresh"
    assert ("its rows in metrics.jsonl are superseded" in said) == bool(callbacks)
    assert read_attempts(experiment / "run.json")[-1].has_saved == (len(callbacks) == 3)


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


def test_out_of_memory_in_a_callback(experiment: Path) -> None:
    callbacks = [ModelSaver().every(steps=2), At(3, lambda: np.ones(_PETABYTES))]
    with pytest.raises(OutOfMemoryError, match="Unable to allocate") as raised:
        CountingTrainer(experiment=experiment).train(callbacks, max_steps=4)
    said = str(raised.value)
    assert said.startswith("out of memory: after step 3: ") and "\n" not in said
    assert "(test_run.py, line " in said and "a resume continues from the checkpoint of step 2" in said


def test_out_of_memory_in_a_compiled_step() -> None:
    trainer = tiny_trainer(build=big_build)
    with pytest.raises(OutOfMemoryError, match=r"step 1 failed in the model: OOM when allocating tensor with shape\["):
        trainer.train(max_steps=2)


def test_out_of_memory_in_build() -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        return {"loss": big(inputs)}

    with pytest.raises(OutOfMemoryError, match=r"building the model: OOM when .*\(test_run.py, line \d+\)"):
        tiny_trainer(build=build)


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
