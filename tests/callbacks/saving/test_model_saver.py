"""Which checkpoints there are, and what a failing save does."""

from __future__ import annotations

import os
import re
import resource
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from prototrain import Callback
from prototrain.callbacks import ModelSaver, Priority, RunOp, SaveOnExit
from prototrain.checkpoint import Checkpoints, Snapshot, files, read_bundle
from prototrain.errors import CallbackError, CheckpointError, ExperimentError
from tests.callbacks.helpers import UNLIMITED, FillsDisk
from tests.tiny import CountingTrainer, tiny_trainer

pytestmark = pytest.mark.usefixtures("disk")


def kept(experiment: Path) -> list[int]:
    return [int(path.name[5:]) for path in sorted((experiment / "checkpoints").iterdir())]


@pytest.mark.parametrize(
    ("every", "max_to_keep", "steps", "expected"),
    [(1, 2, 5, [4, 5]), (2, 5, 7, [2, 4, 6, 7]), (2, 1, 7, [7]), (100, 3, 4, [4]), (3, 3, 3, [3])],
)
def test_the_newest_are_kept(experiment: Path, every: int, max_to_keep: int, steps: int, expected: list[int]) -> None:
    saver = ModelSaver(max_to_keep=max_to_keep).every(steps=every)
    CountingTrainer(experiment=experiment).train([saver], max_steps=steps)
    assert kept(experiment) == expected


def test_a_resumed_run_prunes_those_of_the_earlier_one(experiment: Path) -> None:
    for steps in (4, 7):
        saver = ModelSaver(max_to_keep=2).every(steps=1)
        CountingTrainer(experiment=experiment).train([saver, SaveOnExit()], max_steps=steps)
    assert kept(experiment) == [6, 7]


@pytest.mark.parametrize("max_to_keep", [0, -1])
def test_none_to_keep_is_refused(max_to_keep: int) -> None:
    with pytest.raises(CallbackError, match="max_to_keep must be at least 1"):
        ModelSaver(max_to_keep=max_to_keep)


def test_it_needs_an_experiment() -> None:
    with pytest.raises(ExperimentError, match="ModelSaver needs a directory"):
        CountingTrainer().train([ModelSaver()], max_steps=1)


def test_a_failing_save_is_reported_and_the_next_one_works(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saver = ModelSaver().every(steps=2)
    CountingTrainer(experiment=experiment).train([saver, FillsDisk(3, 5, 100)], max_steps=8)
    assert kept(experiment) == [2, 6, 8]
    assert capsys.readouterr().out.count("WARNING: cannot save step 4") == 1


def test_a_save_that_fails_at_the_end_is_an_error(experiment: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot save step 4"):
        CountingTrainer(experiment=experiment).train([SaveOnExit(), FillsDisk(3, 99, 100)], max_steps=4)
    resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)
    assert kept(experiment) == []


def test_a_checkpoint_holds_what_the_step_s_other_callbacks_decided(experiment: Path) -> None:
    class Best(Callback):
        priority = Priority.DECIDE
        best = 0.0

        def trigger(self) -> None:
            self.best = 1.0 * self.trainer.global_step

        def state_dict(self) -> dict[str, float]:
            return {"best": self.best}

        def load_state_dict(self, state: dict[str, float]) -> None:
            self.best = state["best"]

    CountingTrainer(experiment=experiment).train([ModelSaver().every(steps=2), Best().every(steps=2)], max_steps=4)
    best = Best()
    CountingTrainer(experiment=experiment).train([best.every(steps=100)], max_steps=4)
    assert best.best == 4.0


def niceness_of_threads() -> dict[int, int]:
    """That of each thread of this process."""
    found = {}
    for number in map(int, os.listdir("/proc/self/task")):
        with suppress(ProcessLookupError):  # it has just ended
            found[number] = os.getpriority(os.PRIO_PROCESS, number)
    return found


class TestAsynchronous:
    @pytest.mark.parametrize(
        ("every", "max_to_keep", "steps", "expected"),
        [(1, 2, 5, [4, 5]), (2, 5, 7, [2, 4, 6, 7]), (100, 3, 4, [4])],
    )
    def test_the_newest_are_kept(
        self, experiment: Path, every: int, max_to_keep: int, steps: int, expected: list[int]
    ) -> None:
        saver = ModelSaver(max_to_keep=max_to_keep, asynchronous=True).every(steps=every)
        CountingTrainer(experiment=experiment).train([saver], max_steps=steps)
        assert kept(experiment) == expected

    def test_a_checkpoint_that_is_written_late_holds_the_values_of_its_step(self, tmp_path: Path) -> None:
        written = {}
        for late in (False, True):
            experiment = tmp_path / str(late)
            trainer = tiny_trainer(experiment)
            go_on = threading.Event()
            if late:
                trainer.run._writer.submit(go_on.wait)  # what is written queues behind this
            release = RunOp(go_on.set).every(steps=5)
            saver = ModelSaver(asynchronous=late).every(steps=3)
            trainer.train([saver, release], max_steps=5)
            values = read_bundle(experiment / "checkpoints" / "step-0000000003" / "model")
            written[late] = {name: value.tobytes() for name, value in values.items()}
        assert written[False] == written[True]

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only whole processes have a priority")
    @pytest.mark.parametrize(
        ("asynchronous", "size", "expected"),
        [(True, 16, {3: 10, 5: 0}), (False, 16, {3: 0, 5: 0}), (True, 2**20, {3: 0, 5: 0})],
    )
    def test_only_much_that_is_written_beside_the_training_leaves_the_processors_to_it(
        self,
        asynchronous: bool,
        size: int,
        expected: dict[int, int],
        experiment: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        usual, found = niceness_of_threads(), {}
        write = files._write_tensors

        def noted(prefix: str, tensors: Any) -> None:
            step = int(re.findall(r"step-(\d+)", prefix)[-1])
            found[step] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) - min(usual.values())
            write(prefix, tensors)

        monkeypatch.setattr(files, "_FILE_BYTES", size)
        monkeypatch.setattr(files, "_write_tensors", noted)
        tiny_trainer(experiment).train([ModelSaver(asynchronous=asynchronous).every(steps=3)], max_steps=5)
        assert found == expected
        assert set(niceness_of_threads().values()) == set(usual.values())  # TensorFlow's threads are as they were

    def test_a_failure_is_reported_and_the_next_one_works(
        self, experiment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        start = Checkpoints.start

        def fail(self: Checkpoints, snapshot: Snapshot, *, aside: bool = False) -> Callable[[], Path]:
            def finish() -> Path:
                raise CheckpointError("cannot save step 4: no room")

            return finish if snapshot.step == 4 else start(self, snapshot, aside=aside)

        monkeypatch.setattr(Checkpoints, "start", fail)
        saver = ModelSaver(asynchronous=True).every(steps=2)
        CountingTrainer(experiment=experiment).train([saver], max_steps=8)
        assert kept(experiment) == [2, 6, 8]
        assert capsys.readouterr().out.count("WARNING: cannot save step 4: no room; training continues") == 1

    def test_a_resume_is_exact(self, experiment: Path, tmp_path: Path) -> None:
        def train(directory: Path, steps: int) -> dict[str, bytes]:
            trainer = tiny_trainer(directory)
            trainer.train([ModelSaver(asynchronous=True).every(steps=3)], max_steps=steps)
            return {name: variable.numpy().tobytes() for name, variable in trainer.variables.items()}

        whole = train(tmp_path / "whole", 12)
        train(experiment, 7)
        assert train(experiment, 12) == whole
