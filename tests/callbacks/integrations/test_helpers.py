from __future__ import annotations

import multiprocessing
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from prototrain.callbacks import CallbackFactory, InjectShell, SendMonitorData, StartProcOrThread, integrations
from tests.tiny import CountingTrainer


class Terminal:
    def __init__(self, there: bool) -> None:
        self._there = there

    def isatty(self) -> bool:
        return self._there


@pytest.mark.parametrize(("there", "opened"), [(True, [4]), (False, [])])
def test_a_shell_when_the_file_appears(
    there: bool, opened: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(there))
    file, steps = tmp_path / "INJECT", []

    def ask(self: CallbackFactory) -> None:
        if self.trainer.global_step == 3:
            file.touch()

    monkeypatch.setattr(integrations, "open_shell", lambda trainer: steps.append(trainer.global_step))
    CountingTrainer().train(
        [InjectShell(file).every(steps=1), CallbackFactory(trigger=ask).every(steps=1)], max_steps=6
    )
    assert steps == opened and not file.exists()
    assert capsys.readouterr().out.count("this run has no terminal") == (not there)


def test_a_thread_that_is_told_to_end() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    alive: list[bool] = []
    see = CallbackFactory(trigger=lambda self: alive.append(thread.is_alive()))
    CountingTrainer().train([StartProcOrThread(thread, stop=ended.set), see], max_steps=2)
    assert alive == [True] and not thread.is_alive()


def test_a_process_is_terminated() -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_sleep, daemon=True)
    CountingTrainer().train([StartProcOrThread([process])], max_steps=1)
    assert not process.is_alive() and process.exitcode not in (None, 0)


def _sleep() -> None:
    threading.Event().wait(60)


def put(self: Any) -> None:
    if self.trainer.global_step > 1:
        self.trainer.monitors.put_scalar("vld/loss", self.trainer.global_step / 2)


def test_data_for_a_command(tmp_path: Path) -> None:
    send = SendMonitorData(f"echo '{{{{x: {{vld/loss:.2f}}}}}}' >> {tmp_path}/sent", "vld/loss")
    CountingTrainer().train([CallbackFactory(trigger=put).every(steps=1), send.every(steps=1)], max_steps=3)
    assert (tmp_path / "sent").read_text() == "{x: 1.00}\n{x: 1.50}\n"


@pytest.mark.parametrize(
    ("command", "problem"),
    [("echo no >&2; exit 3 # {vld/loss}", "exit code 3: no"), ("sleep 9 # {vld/loss}", "timed out")],
)
def test_a_command_that_fails(command: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    send = SendMonitorData(command, ["vld/loss"], timeout=0.2 if "sleep" in command else 10)
    trainer = CountingTrainer()
    trainer.train([CallbackFactory(trigger=put).every(steps=1), send.every(steps=1)], max_steps=4)
    printed = capsys.readouterr().out
    assert trainer.global_step == 4
    assert printed.count("WARNING: SendMonitorData failed") == 1 and problem in printed
