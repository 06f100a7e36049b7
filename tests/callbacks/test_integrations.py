from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prototrain.callbacks import CallbackFactory, InjectShell, SendMonitorData, StartProcOrThread, integrations
from prototrain.callbacks.integrations import DebugShell
from prototrain.errors import CallbackError
from tests.callbacks.helpers import Puts
from tests.tiny import At, CountingTrainer, tiny_trainer


def test_shell_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython

    opened: list[dict[str, Any]] = []

    def embed(*, user_ns: dict[str, Any], **keywords: Any) -> None:
        opened.append({**user_ns, "handler": signal.getsignal(signal.SIGINT), "step": user_ns["trainer"].global_step})

    monkeypatch.setattr(IPython, "embed", embed)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    before, trainer = signal.getsignal(signal.SIGINT), tiny_trainer()
    trainer.train([DebugShell()], max_steps=2)
    CountingTrainer().train([DebugShell()], max_steps=1)
    names, plain = opened
    assert (names["trainer"], names["model"], names["config"]) == (trainer, trainer.model, trainer.config)
    assert names["batch"]["x"].shape == (8, 4) and names["step"] == 0 and trainer.global_step == 2
    assert plain["model"] is plain["config"] is plain["batch"] is None
    assert names["handler"] == before == signal.getsignal(signal.SIGINT)  # Ctrl-C belongs to the shell
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    with pytest.raises(CallbackError, match="needs a terminal"):
        CountingTrainer().train([DebugShell()], max_steps=1)


@pytest.mark.parametrize(("is_terminal", "opened"), [(True, [4]), (False, [])])
def test_shell_when_the_file_appears(
    is_terminal: bool, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: is_terminal))
    file, steps = tmp_path / "INJECT", []
    monkeypatch.setattr(integrations, "open_shell", lambda trainer: steps.append(trainer.global_step))
    callbacks = [InjectShell(file).every(steps=1), At(3, file.touch)]
    CountingTrainer().train(callbacks, max_steps=6)
    assert steps == opened and not file.exists()
    assert capsys.readouterr().out.count("this run has no terminal") == (not is_terminal)


def test_threads_and_processes_end_with_the_run() -> None:
    ended, alive = threading.Event(), []
    thread = threading.Thread(target=ended.wait)
    process = multiprocessing.get_context("spawn").Process(target=_sleep, daemon=True)
    see = CallbackFactory(trigger=lambda self: alive.append((thread.is_alive(), process.is_alive())))
    CountingTrainer().train([StartProcOrThread(iter([process, thread]), stop=ended.set), see], max_steps=2)
    assert alive == [(True, True)] and not thread.is_alive()
    assert not process.is_alive() and process.exitcode not in (None, 0)


def _sleep() -> None:
    threading.Event().wait(60)


def test_send_monitor_data(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrations, "_COMMAND_SECONDS", 0.5)
    commands = [f"echo '{{{{x: {{vld/f1:.2f}}}}}}' >> {tmp_path}/sent", "echo no >&2; exit 3", "sleep 9"]
    sends = [SendMonitorData(command, "vld/f1").every(steps=1) for command in commands]
    trainer = CountingTrainer()
    trainer.train([Puts(_2={"vld/f1": 1.0}, _3={"vld/f1": 1.5}), *sends], max_steps=3)
    assert (tmp_path / "sent").read_text() == "{x: 1.00}\n{x: 1.50}\n" and trainer.global_step == 3
    said = capsys.readouterr().out
    assert said.count("WARNING: SendMonitorData failed") == 2
    assert "exit status 3. no; this" in said and "timed out" in said
    CountingTrainer().train([Puts(_2={"vld/f1": 1.0}), SendMonitorData("true", "vld/f2")], max_steps=3)
    assert "never ran: no scalar 'vld/f2'; did you mean 'vld/f1'?" in capsys.readouterr().out
    with pytest.raises(CallbackError, match="'vld/los'"):
        SendMonitorData("echo {vld/los}", "vld/loss")
