"""The shell before the first step."""

from __future__ import annotations

import io
import signal
import sys
from typing import Any

import pytest

from prototrain.callbacks.integrations import DebugShell
from prototrain.errors import CallbackError
from tests.tiny import CountingTrainer, tiny_trainer


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """In place of a user at a terminal: what the shell was opened with, and who had Ctrl-C meanwhile."""
    import IPython

    opened: list[dict[str, Any]] = []

    def embed(*, user_ns: dict[str, Any], **keywords: Any) -> None:
        opened.append({**user_ns, "handler": signal.getsignal(signal.SIGINT), "step": user_ns["trainer"].global_step})

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(IPython, "embed", embed)
    monkeypatch.setattr(sys, "stdin", Terminal())
    return opened


def test_everything_is_at_hand(typed: list[dict[str, Any]]) -> None:
    trainer = tiny_trainer()
    trainer.train([DebugShell()], max_steps=2)
    (names,) = typed
    assert names["trainer"] is trainer
    assert names["model"] is trainer.model
    assert names["config"] is trainer.config
    assert names["batch"]["x"].shape == (8, 4)
    assert names["step"] == 0
    assert trainer.global_step == 2


def test_a_plain_trainer_has_one_too(typed: list[dict[str, Any]]) -> None:
    CountingTrainer().train([DebugShell()], max_steps=1)
    assert typed[0]["model"] is typed[0]["config"] is typed[0]["batch"] is None


def test_the_shell_has_ctrl_c_to_itself(typed: list[dict[str, Any]]) -> None:
    before = signal.getsignal(signal.SIGINT)
    handlers: list[Any] = []

    class Looks(CountingTrainer):
        def run_step(self) -> dict[str, float]:
            handlers.append(signal.getsignal(signal.SIGINT))
            return super().run_step()

    Looks().train([DebugShell()], max_steps=1)
    assert typed[0]["handler"] == before
    assert handlers != [before]
    assert signal.getsignal(signal.SIGINT) == before


def test_without_a_terminal_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(CallbackError, match="needs a terminal"):
        CountingTrainer().train([DebugShell()], max_steps=1)
