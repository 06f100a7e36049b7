from __future__ import annotations

import io
import re
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from prototrain import StopTraining
from prototrain.callbacks import ProgressBar, ScalarPrinter
from prototrain.callbacks.profiling import progress_bar
from tests.callbacks.helpers import EachStep, Fails, Puts, timed
from tests.tiny import CountingTrainer


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "_LINE_SECONDS", 3)
    monkeypatch.setattr(progress_bar, "_BAR_SECONDS", 0)


def test_lines_of_new_resumed_and_endless_runs(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = CountingTrainer()
    trainer.train([timed(ProgressBar(), lambda: trainer.global_step), EachStep()], max_steps=10, steps_per_epoch=4)
    trainer.train([timed(ProgressBar(), lambda: trainer.global_step / 2)], max_steps=20)  # its own speed
    endless = CountingTrainer()
    endless.train([timed(ProgressBar(), lambda: endless.global_step), Fails(5, StopTraining)])
    captured = capsys.readouterr()
    assert captured.err == ""
    assert [line for line in captured.out.splitlines() if line.startswith("epoch ")] == [
        "epoch 1 of 3, step 4 of 10, 1 steps/s, 00:06 left, loss 0.25",
        "epoch 2 of 3, step 8 of 10, 1 steps/s, 00:02 left, loss 0.125",
        "epoch 3 of 3, step 10 of 10, 1 steps/s, loss 0.1",
        "epoch 1 of 1, step 20 of 20, 2 steps/s, loss 0.05",
        "epoch 1, step 4, 1 steps/s, loss 0.25",
    ]


def test_asks_for_no_steps_between_updates() -> None:
    calls: list[int] = []

    class Counts(CountingTrainer):
        def run_steps(self, n: int) -> int:
            calls.append(n)
            return super().run_steps(n)

    Counts().train([ProgressBar()], max_steps=1000)
    assert len(calls) <= 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "begin"), [("120", "epoch 2 of 2: 100%|"), ("80", "100%|")])
def test_bar_on_a_terminal(columns: str, begin: str, monkeypatch: pytest.MonkeyPatch, experiment: Path) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    callbacks = [ProgressBar(), ScalarPrinter().every(steps=5), EachStep()]
    with redirect_stderr(Terminal()) as shown:
        CountingTrainer(experiment=experiment).train(callbacks, steps_per_epoch=5, max_steps=10)
    bars = re.split(r"[\r\n]+", shown.getvalue())
    assert any(bar.startswith(begin) and "10/10" in bar and "loss=0.1" in bar for bar in bars)
    assert "%|" not in (experiment / "train.log").read_text()


def test_chosen_scalars(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = CountingTrainer()
    bar = timed(ProgressBar(scalars=["vld/*", "loss", "nothing"]), lambda: trainer.global_step)
    trainer.train([bar, EachStep(), Puts(s2={"vld/b": 2.5, "vld/a": 1})], max_steps=3)
    shown = "epoch 1 of 1, step 3 of 3, 1 steps/s, vld/b 2.5, vld/a 1, loss 0.3333\n"
    assert shown in capsys.readouterr().out
