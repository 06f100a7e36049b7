from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prototrain.callbacks import JSONWriter, SaveOnExit, Summaries, TensorBoardWriter
from prototrain.trainers import report
from prototrain.trainers.report import closing, opening
from tests.tiny import CountingTrainer, tiny_trainer


class Talkative(CountingTrainer):
    """Says more than fits on a line, and something that no trainer says."""

    def describe(self) -> dict[str, Any]:
        return {"flavour": "plain", **super().describe(), "start": "because " + "of this and that, " * 20, "none": None}


def test_known_rows_come_first_and_long_ones_are_wrapped() -> None:
    lines = opening(Talkative()).splitlines()
    names = [line.split("  ")[0] for line in lines if line and not line.startswith(" ")]
    assert names == ["trainer", "steps", "start", "flavour"]
    assert max(map(len, lines)) <= 120
    assert [line.startswith(" " * 9) for line in lines if "this" in line] == [False, True, True, True]


def test_a_gpu_that_is_not_used_is_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "why_no_gpu", lambda: "WARNING: there is a GPU")
    assert opening(CountingTrainer()).endswith("\n\nWARNING: there is a GPU\n")


def test_the_table_of_a_run(experiment: Path) -> None:
    trainer = tiny_trainer(experiment)
    trainer.train([SaveOnExit()], max_steps=3, steps_per_epoch=2)
    rows = dict(line.split("  ", 1) for line in opening(trainer).split("\n\n")[0].splitlines())
    rows = {name: value.strip() for name, value in rows.items()}
    assert list(rows)[:10] == [
        "model",
        "trainer",
        "towers",
        "devices",
        "global batch",
        "steps",
        "epochs",
        "learning rate",
        "directory",
        "start",
    ]
    assert (rows["model"], rows["trainer"], rows["towers"]) == ("tiny", "SimpleTrainer", "1")
    assert (rows["global batch"], rows["steps"], rows["epochs"]) == ("8 = 1 tower x 8", "3", "2 of 2 steps")
    assert (rows["directory"], rows["start"], rows["learning rate"]) == (str(experiment), "fresh", "0.01")


def test_the_end_says_where_everything_lies(experiment: Path) -> None:
    trainer = tiny_trainer(experiment)
    trainer.train([Summaries().every(steps=1), TensorBoardWriter(), JSONWriter(), SaveOnExit()], max_steps=2)
    assert (closing(trainer) or "").strip().splitlines() == [
        f"checkpoints  {experiment}/checkpoints (newest: step-0000000002)",
        f"metrics      {experiment}/metrics.jsonl",
        f"log          {experiment}/train.log",
        f"look at it   tensorboard --logdir {experiment}/summaries",
    ]


def test_a_run_without_a_directory_has_no_end_table() -> None:
    assert closing(tiny_trainer()) is None
