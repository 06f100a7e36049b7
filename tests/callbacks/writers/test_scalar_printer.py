from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from prototrain import Trainer
from prototrain.callbacks import MaxSaver, ScalarPrinter, Summaries
from tests.callbacks.helpers import Puts
from tests.tiny import CountingTrainer


class Many(Trainer):
    def __init__(self, outputs: dict[str, Any], **keywords: Any) -> None:
        super().__init__(**keywords)
        self.values = outputs

    def run_step(self) -> dict[str, Any]:
        return self.values


def printed(capsys: pytest.CaptureFixture[str], outputs: dict[str, Any], *callbacks: Any, steps: int = 1) -> list[str]:
    """The lines of the table, with "-" for the time and the speed."""
    Many(outputs).train(callbacks, max_steps=steps)
    lines = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.split()[:1] == ["step"])
    found = [line for line in lines[first:] if line and not line.startswith("time ")]
    return [re.sub(r"^( *\d+ +\d+) +\S+ +\S+", r"\1 - -", line) for line in found]


def test_column_per_name_and_row_per_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    puts = Puts(s2={"vld/loss": 0.123456, "vld/accuracy": 1.0, "alone": 12345.0, "perf/rate": 9.0})
    lines = printed(capsys, {"loss": 1e-5, "accuracy": 0.9375}, puts, ScalarPrinter().every(steps=2), steps=2)
    assert [line.split() for line in lines] == [
        ["step", "epoch", "time", "steps/s", "data", "loss", "accuracy", "alone", "rate"],
        ["2", "1", "-", "-", "trn", "1e-05", "0.9375"],
        ["12345"],
        ["perf", "9"],
        ["vld", "0.1235*", "1"],
    ]
    # A scalar of an earlier step is printed in a row for that step.
    lines = printed(capsys, {"loss": 2.0}, Puts(s1={"vld/loss": 0.5}), ScalarPrinter().every(steps=2), steps=4)
    assert [line.split() for line in lines[1:]] == [
        ["1", "vld", "0.5*"],
        ["2", "1", "-", "-", "trn", "2"],
        ["4", "1", "-", "-", "trn", "2"],
    ]


def test_best_value_has_a_star(capsys: pytest.CaptureFixture[str], experiment: Path) -> None:
    losses = {f"s{step}": {"vld/loss": loss, "vld/score": -loss} for step, loss in enumerate((3.0, 2.0, 2.5, 1.0), 1)}
    lines = printed(capsys, {}, Puts(**losses), ScalarPrinter().every(steps=1), steps=4)
    assert [line.split()[-2:] for line in lines[1:]] == [["3*", "-3"], ["2*", "-2"], ["2.5", "-2.5"], ["1*", "-1"]]
    saver = MaxSaver("vld/score").every(steps=1)
    Many({"loss": 1.0}, experiment=experiment).train(
        [Puts(**losses), saver, ScalarPrinter().every(steps=4)], max_steps=4
    )
    assert "-1*" in capsys.readouterr().out


def test_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wide = {f"metric_{number}": -0.000012345 for number in range(8)} | {"loss": 123456.7}
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for columns in (80, 120, 30):
        size = os.terminal_size((columns, 40))
        monkeypatch.setattr("shutil.get_terminal_size", lambda *_, size=size, **__: size)
        Many(wide).train([ScalarPrinter().every(steps=1)], max_steps=25)
        said = capsys.readouterr().out
        table = [line for line in said.splitlines() if re.match(" *(step|[0-9]+) ", line)]
        assert sum("epoch" in line for line in table) == 1 and len(table) == 26
        assert max(map(len, table)) <= max(columns, 60) and "loss" in table[0]
        assert said.count("columns that do not fit: metric_") == 1


def test_means_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    callbacks = [Summaries().every(steps=3), ScalarPrinter().every(steps=2)]
    CountingTrainer().train(callbacks, max_steps=4)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if " trn " in line]
    assert [(line[0], line[-1]) for line in lines] == [("2", "0.75"), ("4", "0.25")]


def test_white_and_blacklist(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = {"loss": 1.0, "loss_l2": 2.0, "accuracy": 3.0}
    for keywords, expected in (
        ({}, ["loss", "accuracy", "loss_l2"]),
        ({"whitelist": ["trn/loss$", ".*accuracy"]}, ["loss", "accuracy"]),
        ({"whitelist": ["loss"], "blacklist": ["_l2"]}, ["loss"]),
    ):
        lines = printed(capsys, outputs, ScalarPrinter(**keywords).every(steps=1))
        assert lines[0].split()[5:] == expected
    Many(outputs).train([ScalarPrinter(whitelist=["^loss"]).every(steps=1)], max_steps=2)
    assert capsys.readouterr().out.count("no pattern matches any of trn/accuracy") == 1
