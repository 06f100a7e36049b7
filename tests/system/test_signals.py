"""Signals that stop a run, save, or print stacks; with real signals and forks."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prototrain.callbacks import SaveOnExit
from prototrain.cli import main
from prototrain.system.signals import LeavingAtOnce, StopRequest, ignore_save_signals
from tests.preloaded import Program
from tests.system.test_forks import code_of, fork, wait_for_ever
from tests.test_cli import MODEL
from tests.test_exits import STEPS, Validated, WhileSaving, WhileTracing, callbacks, rows, send, straight
from tests.tiny import At, CountingTrainer, environment, raising, tiny_model, values

__all__ = ["straight"]  # a fixture
TAKEN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1, signal.SIGQUIT)
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def _handlers_are_put_back() -> Iterator[None]:
    def caught() -> str:
        (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigCgt")]
        return line

    before = [signal.getsignal(signum) for signum in TAKEN], caught()
    yield
    assert ([signal.getsignal(signum) for signum in TAKEN], caught()) == before
    assert signal.set_wakeup_fd(-1) == -1


def save() -> None:
    send(signal.SIGUSR1)


@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGXCPU])
def test_repeated_system_signals_stop_and_save(
    signum: int, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def again_and_again() -> None:
        for _ in range(4):
            send(signum)
            time.sleep(0.01)  # a pending signal absorbs the next one

    trainer = CountingTrainer(experiment=experiment)
    with pytest.raises(SystemExit) as caught:
        trainer.train([At(3, again_and_again), SaveOnExit()], max_steps=10)
    assert caught.value.code == 128 + signum
    assert trainer.run.checkpoints.steps() == [3]
    said = capsys.readouterr().out
    assert said.count("stopping after this step and saving") == 1 and "waiting" not in said
    assert signal.Signals(signum).name in (experiment / "run.json").read_text()


def test_ignored_signals_stay_ignored() -> None:
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        trainer = CountingTrainer()
        trainer.train([At(3, lambda: send(signal.SIGHUP))], max_steps=5)
        assert trainer.global_step == 5
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, old)


class WhileSavingStep8(WhileSaving):
    """Sends its signal while that step is saved."""

    def write(self, prefix: str) -> None:
        if "step-0000000008" in prefix:
            super().write(prefix)


def test_save_signal_changes_nothing_else(straight: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Validated(tiny_model(), experiment=tmp_path)
    trainer.action = save
    trainer.state["slow"] = WhileSavingStep8(save)
    more = [WhileTracing(save), At(7, save), At(STEPS, save)]
    trainer.train(callbacks(*more), max_steps=STEPS)
    assert values(trainer) == straight[0]
    assert rows(tmp_path) == straight[1]
    said = capsys.readouterr().out
    # A step that is being traced when the signal comes is run completely or not at all.
    for steps in ({0, 1}, {7}, {8}, {12}, {STEPS}):
        paths = [tmp_path / "checkpoints" / f"step-{step:010d}" for step in steps]
        assert sum(f"to {path}; continuing" in said for path in paths) == 1, steps

    for path in (tmp_path / "checkpoints").iterdir():
        if path.name > "step-0000000007":
            path.rename(tmp_path / path.name)
    again = Validated(tiny_model(), experiment=tmp_path)
    again.state["slow"] = WhileSaving(None)
    again.train(callbacks(At(7, lambda: None)), max_steps=STEPS)
    assert again.run.start_row().startswith("resumed at step 7")
    assert values(again) == straight[0] and rows(tmp_path) == straight[1]


def test_save_signal_without_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    CountingTrainer().train([At(2, save)], max_steps=3)
    assert "nothing was saved: the trainer has no experiment directory" in capsys.readouterr().out


def test_failed_save_signal_does_not_end_the_run(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = CountingTrainer(experiment=experiment)
    trainer.state["large"] = WhileSaving(raising(OSError(errno.ENOSPC, "No space left on device")))
    trainer.train([At(2, save)], max_steps=3)
    said = capsys.readouterr().out
    assert "WARNING" in said and "training continues" in said


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_child_of_a_nested_run_gets_its_signals(signum: int) -> None:
    codes: list[int] = []

    def end_one() -> None:
        child = fork(wait_for_ever)
        os.kill(child, signum)  # at once: the process may not have started to run
        codes.append(code_of(child))

    # The outer one receives the signals first although it was created last.
    inner = CountingTrainer()
    outer = CountingTrainer()
    outer.train([At(2, lambda: inner.train([At(2, end_one)], max_steps=3))], max_steps=3)
    assert codes == [-signum] and outer.global_step == inner.global_step == 3


LOOK = """
import os, signal, threading
from tests.tiny import At, CountingTrainer

ready, done = threading.Event(), threading.Event()

def beside():
    ready.set()
    done.wait()

def look():
    ready.wait()
    os.kill(os.getpid(), signal.SIGQUIT)
    done.set()

threading.Thread(target=beside).start()
trainer = CountingTrainer()
trainer.train([At(1, look)], max_steps=1)
print("steps", trainer.global_step)
"""


def test_stacks_of_all_threads(tmp_path: Path) -> None:
    # In its own process: faulthandler prints the stacks of 100 threads at most, the newest first.
    (tmp_path / "look.py").write_text(LOOK)
    code, said = Program([str(tmp_path / "look.py")], environment()).finish()
    assert code == 0
    assert "steps 1" in said and "in trigger_step" in said and "in beside" in said and "Current thread" in said


def test_save_signals_outside_of_a_run(capfd: pytest.CaptureFixture[str]) -> None:
    with ignore_save_signals(), ignore_save_signals():
        save()
        send(signal.SIGQUIT)
        with LeavingAtOnce():
            save()
        with StopRequest(lambda text: print(text, flush=True), saves=False):
            save()
    said = capfd.readouterr()
    assert said.err.count("SIGUSR1: there is nothing to save; continuing") == 3
    assert "most recent call first" in said.err


def test_save_signal_before_a_run_of_the_command_line(scratch: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("m.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)\n{MODEL}")
    assert main(["run", "m"]) == 0
    assert "there is nothing to save; continuing" in capfd.readouterr().err
