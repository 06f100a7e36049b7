"""Periodic callbacks run at the right steps, for all intervals, resumes and early stops."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from prototrain import Callback, StopTraining
from prototrain.callbacks import ModelSaver
from tests.callbacks.helpers import EachStep, Fails, StepRecorder, timed
from tests.tiny import CountingTrainer, Recorder

INTERVALS: list[dict[str, Any]] = [
    {"steps": 1},
    {"steps": 3},
    {"steps": 4},
    {"steps": 100},
    {"epochs": 1},
    {"epochs": 2},
    {"steps": 3, "epochs": 1},
    {"steps": 4, "epochs": 1},
    {"before_train": True},
    {"steps": 5, "before_train": True},
]
LENGTHS = [(4, 12), (4, 10), (5, 5), (None, 9), (3, 1)]  # steps per epoch, steps


def expected(interval: dict[str, Any], steps_per_epoch: int | None, first: int, last: int) -> list[int]:
    """The documented rule, implemented again."""
    steps, epochs = interval.get("steps"), interval.get("epochs")
    epoch = (steps_per_epoch or 10**6) * (epochs or 0)
    due = [
        s for s in range(first + 1, last + 1) if (steps and s % steps == 0) or (epoch and s % epoch == 0) or s == last
    ]
    return [0, *due] if interval.get("before_train") and first == 0 else due


def fired(experiment: Path | None, length: tuple[int | None, int], *more: Callback) -> list[list[int]]:
    """The steps at which a callback ran, for each of `INTERVALS`."""
    recorders = [Recorder() for _ in INTERVALS]
    periodic = [recorder.every(**interval) for recorder, interval in zip(recorders, INTERVALS, strict=True)]
    trainer = CountingTrainer(experiment=experiment)
    trainer.train([*periodic, *more], steps_per_epoch=length[0], max_steps=length[1])
    return [recorder.steps("trigger") for recorder in recorders]


def all_expected(steps_per_epoch: int | None, first: int, last: int) -> list[list[int]]:
    return [expected(interval, steps_per_epoch, first, last) for interval in INTERVALS]


@pytest.mark.parametrize("length", LENGTHS, ids=str)
def test_runs_at_its_steps_and_the_last(length: tuple[int | None, int]) -> None:
    assert fired(None, length) == all_expected(length[0], 0, length[1])
    if length == (4, 10):
        for stop in (1, 4, 7):  # an early stop makes its step the last
            assert fired(None, length, Fails(stop, StopTraining)) == all_expected(4, 0, stop)


@pytest.mark.parametrize("resume_at", [1, 4, 7])
def test_resumed_and_extended_runs(experiment: Path, resume_at: int) -> None:
    saver, failure = ModelSaver().every(steps=resume_at), Fails(resume_at + 1)
    failure.priority = 0  # before the saver
    with pytest.raises(RuntimeError):
        fired(experiment, (4, 10), saver, failure)
    assert fired(experiment, (4, 10), saver) == all_expected(4, resume_at, 10)
    assert fired(experiment, (4, 13)) == all_expected(4, 10, 13)


def test_intervals_in_seconds() -> None:
    trainer, recorder = CountingTrainer(), Recorder()
    trainer.train([timed(recorder.every(seconds=2.5), lambda: trainer.global_step), EachStep()], max_steps=10)
    # The time is checked between steps: it is over after 3 s, so the next step is due.
    assert recorder.steps("trigger") == [4, 8, 10]
    times = itertools.count()  # each reading of the clock is a second later, so the time is always over
    both = Recorder()
    CountingTrainer().train([timed(both.every(steps=2, seconds=1), lambda: next(times))], max_steps=6)
    assert both.steps("trigger") == [1, 2, 3, 4, 5, 6]


class Composite(Callback):
    """A callback of one's own that forwards hooks to another one."""

    def __init__(self, inner: Callback) -> None:
        self.inner = inner

    def setup(self) -> None:
        self.inner.trainer = self.trainer
        self.inner.setup()

    def next_step(self, step: int) -> int | None:
        return self.inner.next_step(step)

    def trigger_step(self) -> None:
        self.inner.trigger_step()


def test_a_trigger_within_another_callback() -> None:
    recorder = Recorder()
    CountingTrainer().train([Composite(recorder.every(steps=2, seconds=100))], max_steps=4)
    assert recorder.steps("trigger") == [2, 4]


def test_replaces_the_schedule_and_forwards_other_hooks() -> None:
    recorder, twice = StepRecorder(), Recorder()
    CountingTrainer().train([recorder.every(steps=3), twice.every(steps=2).every(steps=3)], max_steps=3)
    hooks = ["setup", "before_train", "before_epoch", "after_epoch", "trigger", "after_train"]
    assert [hook for hook, _ in recorder.calls] == hooks
    assert twice.steps("trigger") == [3]  # the outer one decides
