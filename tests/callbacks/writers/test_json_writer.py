"""`JSONWriter`: metrics.jsonl has each step exactly once, and a full disk does not end a run."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from prototrain import Callback
from prototrain.callbacks import JSONWriter, ModelSaver, SaveOnExit, Summaries
from prototrain.experiment.record import read_attempts
from tests.callbacks.helpers import UNLIMITED, Fails, FillsDisk, Puts, timed
from tests.tiny import CountingTrainer

pytestmark = pytest.mark.usefixtures("disk")


def run(experiment: Path, steps: int, *callbacks: Callback, resume: bool = True) -> list[dict[str, Any]]:
    trainer = CountingTrainer(experiment=experiment)
    trainer.train(
        [Summaries().every(steps=1), timed(JSONWriter(), lambda: 7.0), *callbacks], max_steps=steps, resume=resume
    )
    return rows(experiment)


def rows(experiment: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (experiment / name).read_text().splitlines()]


def test_one_row_per_step(experiment: Path) -> None:
    puts = Puts(s2={"vld/loss": 0.5, "vld/nan": float("nan"), "vld/inf": float("inf")}, s3={"x": 1})
    CountingTrainer(experiment=experiment).train([puts, timed(JSONWriter(), lambda: 7.123456)], max_steps=4)
    assert rows(experiment) == [
        {"step": 2, "time": 7.123, "vld/loss": 0.5, "vld/nan": None, "vld/inf": None},
        {"step": 3, "time": 7.123, "x": 1.0},
    ]


@pytest.mark.parametrize(("save_every", "killed_at"), [(1, 1), (1, 4), (2, 3), (3, 4), (7, 4)])
def test_resumed_run_has_every_step_once(experiment: Path, save_every: int, killed_at: int) -> None:
    with pytest.raises(RuntimeError):
        run(experiment, 6, ModelSaver().every(steps=save_every), Fails(killed_at))
    saved = killed_at // save_every * save_every
    resumed = run(experiment, 6, ModelSaver().every(steps=save_every))
    assert [row["step"] for row in resumed] == [1, 2, 3, 4, 5, 6]
    superseded = experiment / "metrics.superseded.jsonl"
    assert superseded.exists() == (saved < killed_at)
    if superseded.exists():
        assert [row["step"] for row in rows(experiment, superseded.name)] == list(range(saved + 1, killed_at + 1))
    else:
        assert "repeated" not in (experiment / "train.log").read_text()


@pytest.mark.parametrize(
    ("again", "is_same", "words"),
    [
        ({}, True, "steps 4 to 5 repeated with the same values"),
        (
            {"s5": {"x": 1.5, "perf/speed": 2.0}},
            False,
            "step 5 was repeated with a different x: 1.5 instead of 1.0",
        ),
        ({"s4": {"y": 3}, "s5": {"x": 1.0, "perf/speed": 2.0}}, True, "steps 4 to 5 repeated"),
    ],
)
def test_repeated_rows_are_compared(again: dict[str, Any], is_same: bool, words: str, experiment: Path) -> None:
    values = {"s4": {"x": float("nan")}, "s5": {"x": 1.0, "perf/speed": 1.0}}
    with pytest.raises(RuntimeError):
        run(experiment, 8, ModelSaver().every(steps=3), Puts(**values), Fails(5))
    steps = 5 if is_same else 8
    run(experiment, steps, ModelSaver().every(steps=3), Puts(**(values | again)))
    assert words in (experiment / "train.log").read_text()
    assert [attempt.repeated for attempt in read_attempts(experiment / "run.json")] == [None, is_same]


@pytest.mark.parametrize("tail", ['{"step": 3, "ti', "\x00\x00\x00", "[1, 2]\n"])
def test_invalid_rows_are_dropped(experiment: Path, tail: str) -> None:
    run(experiment, 2, SaveOnExit())
    before = (experiment / "metrics.jsonl").read_text()
    (experiment / "metrics.jsonl").write_text(before + tail)
    assert [row["step"] for row in run(experiment, 4)] == [1, 2, 3, 4]


def test_row_of_the_checkpoint_is_completed(experiment: Path) -> None:
    class Late(Callback):
        """Records a scalar after all other callbacks; fails the first time."""

        priority = 1000

        def trigger_step(self) -> None:
            if not (experiment / "checkpoints").exists():
                raise RuntimeError("on purpose")
            self.trainer.monitors.put_scalar("late/a", 5)

    with pytest.raises(RuntimeError):
        run(experiment, 2, SaveOnExit(), Late())
    assert rows(experiment) == [{"step": 1, "time": 7.0, "trn/loss": 1.0}]
    assert run(experiment, 2, Late()) == [
        {"step": 1, "time": 7.0, "trn/loss": 1.0, "late/a": 5.0},
        {"step": 2, "time": 7.0, "trn/loss": 0.5, "late/a": 5.0},
    ]


@pytest.mark.parametrize("last", [7, 99])
def test_full_disk_is_reported_once(last: int, experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = CountingTrainer(experiment=experiment)  # 100 bytes: two rows and a part of the third
    trainer.train([Summaries().every(steps=1), JSONWriter(), FillsDisk(3, last, 100)], max_steps=9)
    said = capsys.readouterr().out
    assert said.count(f"WARNING: cannot write {experiment / 'metrics.jsonl'}") == 1
    assert ("lacks the rows since step" in said) == (last == 99)
    resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)
    assert [row["step"] for row in (rows(experiment) if last < 9 else run(experiment, 9))] == list(range(1, 10))
