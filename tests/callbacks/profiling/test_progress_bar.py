"""A bar on a terminal, whole lines everywhere else."""

from __future__ import annotations

import io
import os
import pty
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

from prototrain import Callback, StopTraining
from prototrain.callbacks import ProgressBar, ScalarPrinter
from prototrain.errors import CallbackError
from tests.callbacks.helpers import Puts
from tests.tiny import CountingTrainer


class Clock:
    """A second passes with every step."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def __call__(self) -> float:
        return float(self.trainer.global_step)


class EachStep(Callback):
    def trigger_step(self) -> None:
        pass


def lines(capsys: pytest.CaptureFixture[str], *, steps: int | None = 10, **keywords: Any) -> list[str]:
    trainer = CountingTrainer()
    bar = ProgressBar(line_seconds=3, clock=Clock(trainer))
    trainer.train([bar, EachStep()], max_steps=steps, **keywords)
    captured = capsys.readouterr()
    assert captured.err == ""
    return [line for line in captured.out.splitlines() if line.startswith("epoch ")]


def test_off_a_terminal_it_prints_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, steps_per_epoch=4) == [
        "epoch 1 of 3, step 4 of 10, 1 steps/s, 00:06 left, loss 0.25",
        "epoch 2 of 3, step 8 of 10, 1 steps/s, 00:02 left, loss 0.125",
        "epoch 3 of 3, step 10 of 10, 1 steps/s, loss 0.1",
    ]


def test_a_run_of_one_step_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = lines(capsys, steps=1)
    assert line.startswith("epoch 1 of 1, step 1 of 1, ")


def test_a_resumed_run_counts_its_own_speed(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = CountingTrainer()
    trainer.train([], max_steps=100)
    trainer.train([ProgressBar(clock=lambda: trainer.global_step / 2)], max_steps=110)
    assert "step 110 of 110, 2 steps/s" in capsys.readouterr().out


def test_an_endless_run_has_no_end_to_show(capsys: pytest.CaptureFixture[str]) -> None:
    class Ends(Callback):
        def trigger_step(self) -> None:
            if self.trainer.global_step == 5:
                raise StopTraining

    trainer = CountingTrainer()
    trainer.train([ProgressBar(line_seconds=3, clock=Clock(trainer)), Ends()])
    assert "step 4, 1 steps/s, loss 0.25" in capsys.readouterr().out


def test_it_does_not_ask_for_steps_while_there_is_nothing_to_show() -> None:
    calls: list[int] = []

    class Counts(CountingTrainer):
        def run_steps(self, n: int) -> int:
            calls.append(n)
            return super().run_steps(n)

    Counts().train([ProgressBar()], max_steps=1000)
    assert len(calls) <= 2


@contextmanager
def terminal() -> Iterator[Callable[[], str]]:
    """Makes stderr and stdout one terminal inside, and gives what is written there. (A fixture pytest would undo.)"""
    controller, user = pty.openpty()
    os.set_blocking(controller, False)
    termios.tcsetwinsize(user, (24, 100))

    def written() -> str:
        text = b""
        with suppress(BlockingIOError):
            while chunk := os.read(controller, 65536):
                text += chunk
        return text.decode()

    raw = os.fdopen(user, "wb", buffering=0)
    stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    with stream, redirect_stdout(stream), redirect_stderr(stream):
        yield written
    os.close(controller)


def screen(written: str) -> list[str]:
    """What is left on the screen: a carriage return goes back to the start of a line that is written over."""
    shown = []
    for line in written.replace("\r\n", "\n").split("\n"):
        cells: list[str] = []
        for part in line.replace("\x1b[A", "").split("\r"):
            cells[: len(part)] = part
        shown.append("".join(cells).rstrip())
    return shown


@pytest.mark.parametrize(("columns", "begin"), [("120", "epoch 2 of 2: 100%|"), ("80", "100%|")])
def test_on_a_terminal_it_is_a_bar(columns: str, begin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with terminal() as read:
        CountingTrainer().train([ProgressBar(refresh_seconds=0), EachStep()], steps_per_epoch=5, max_steps=10)
        written = read()
    assert written.count("\r") > 5
    (bar,) = [line for line in screen(written) if "10/10" in line]
    assert bar.strip().startswith(begin)
    assert "loss=0.1" in bar


def test_what_is_printed_meanwhile_stands_in_lines_of_its_own(experiment: Path) -> None:
    callbacks = [ProgressBar(refresh_seconds=0), ScalarPrinter().every(steps=2), EachStep()]
    with terminal() as read:
        CountingTrainer(experiment=experiment).train(callbacks, max_steps=6)
        shown = screen(read())
    assert [line.split("trn")[1].strip() for line in shown if " trn " in line] == ["0.5", "0.25", "0.1667"]
    log = (experiment / "train.log").read_text()
    assert "%|" not in log
    assert "\r" not in log


def test_a_bar_is_closed_when_a_run_fails() -> None:
    class Fails(Callback):
        def trigger_step(self) -> None:
            if self.trainer.global_step == 3:
                raise RuntimeError("on purpose")

    with terminal() as read:
        with pytest.raises(RuntimeError):
            CountingTrainer().train([ProgressBar(), Fails()], max_steps=6)
        assert [line for line in screen(read()) if "3/6" in line]


def test_scalars_of_choice(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = CountingTrainer()
    bar = ProgressBar(scalars=["vld/*", "loss", "nothing"], line_seconds=3, clock=Clock(trainer))
    trainer.train([bar, EachStep(), Puts(s2={"vld/b": 2.5, "vld/a": 1})], max_steps=3)
    said = capsys.readouterr().out
    assert "epoch 1 of 1, step 3 of 3, 1 steps/s, vld/b 2.5, vld/a 1, loss 0.3333\n" in said
    assert "ProgressBar: there was no scalar 'nothing' to be shown; there are: loss, vld/b, vld/a, trn/loss\n" in said
    with pytest.raises(CallbackError, match="takes a list of names"):
        ProgressBar(scalars="loss")
