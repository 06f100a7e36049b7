"""A word about what takes long before the first step, and a signal that ends it. No test waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prototrain.callbacks import SaveOnExit, Validation
from prototrain.system.waiting import announcing
from tests.conftest import ROOT
from tests.tiny import CountingTrainer, tiny_trainer


class Clock:
    """A timer whose time comes when a test says so."""

    def __init__(self, seconds: float, action: Callable[[], object]) -> None:
        self.seconds, self.action = seconds, action
        self.daemon = False
        self.running = False
        clocks.append(self)

    def start(self) -> None:
        self.running = True

    def cancel(self) -> None:
        self.running = False

    def ring(self) -> None:
        assert self.running
        self.action()


class Impatient(Clock):
    """A timer whose time comes at once."""

    def start(self) -> None:
        self.action()


clocks: list[Clock] = []


@pytest.fixture(autouse=True)
def _no_clocks() -> None:
    clocks.clear()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    function: Any = announcing
    monkeypatch.setitem(function.__wrapped__.__kwdefaults__, "timer", Impatient)


@pytest.mark.parametrize("is_long", [True, False])
def test_what_takes_long_says_so(is_long: bool) -> None:
    said: list[str] = []
    with announcing("restoring", said.append, timer=Clock):
        (clock,) = clocks
        assert clock.seconds == 2.0 and clock.daemon and clock.running and said == []
        if is_long:
            clock.ring()
    assert not clock.running
    assert said == (["restoring ..."] if is_long else [])


def test_a_failure_goes_on_and_ends_the_timer() -> None:
    with pytest.raises(ValueError, match="mine"), announcing("restoring", timer=Clock):
        raise ValueError("mine")
    assert not clocks[0].running


@pytest.mark.usefixtures("impatient")
def test_what_a_start_and_a_resume_do_before_the_first_step(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines() -> list[str]:
        # Data has words of its own.
        said = [line for line in capsys.readouterr().out.splitlines() if line.endswith(" ...")]
        return [line for line in said if "read" not in line and "datasets()" not in line]

    tiny_trainer(experiment).train([Validation().every(steps=2), SaveOnExit()], max_steps=2)
    start = [
        "building the model ...",
        "noting what the run is made from ...",
        "checking the newest checkpoint ...",
        "trying out the validation on 'vld' ...",
        "tracing and compiling the step ...",
    ]
    assert lines() == start
    trainer = tiny_trainer(experiment)
    trainer.train([Validation().every(steps=2), SaveOnExit()], max_steps=4)
    assert lines() == [*start[:3], "restoring the checkpoint of step 2 ...", *start[3:]]
    tiny_trainer(experiment).train([SaveOnExit()], max_steps=2, fresh=True)
    assert f"deleting what is in {experiment} ..." in lines()


class SignalsWhenRead:
    """A part of a checkpoint that takes long to restore, so that somebody presses Ctrl-C meanwhile."""

    def write(self, prefix: str) -> None:
        pass

    def read(self, prefix: str, meta: None) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_while_restoring_ends_the_run_before_the_first_step(experiment: Path) -> None:
    for steps in (2, 4):
        trainer = CountingTrainer(experiment=experiment)
        trainer.state["slow"] = SignalsWhenRead()
        if steps == 2:
            trainer.train([SaveOnExit()], max_steps=steps)
    with pytest.raises(KeyboardInterrupt):
        trainer.train([SaveOnExit()], max_steps=4)
    assert trainer.global_step == 2 and trainer.session.checkpoints.steps() == [2]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_wait_that_python_cannot(signum: int, code: int) -> None:
    """As inside of TensorFlow: the main thread does not come back to the interpreter."""
    program = (
        "import ctypes, sys\nfrom prototrain.system.signals import LeavingAtOnce\n"
        "with LeavingAtOnce():\n    print('waiting', flush=True)\n"
        "    while True:\n        ctypes.CDLL(None).sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT) as waiting:
        assert waiting.stdout is not None and waiting.stdout.readline() == "waiting\n"
        waiting.send_signal(signum)
        assert waiting.wait(20) == code
