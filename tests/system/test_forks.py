"""Child processes of a run neither end it nor keep it from ending; with real forks and signals."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prototrain import Trainer
from prototrain.callbacks import CallbackFactory, JSONWriter, SaveOnExit, StartProcOrThread
from prototrain.experiment import Experiment
from prototrain.experiment.lock import DirectoryLock
from prototrain.system.signals import StopRequest
from tests.tiny import At, CountingTrainer, tiny_trainer

FORK = multiprocessing.get_context("fork")
# Python 3.12 and later warn about a fork in a process with threads, which TensorFlow always has.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
ENOUGH = 20.0


@pytest.fixture
def children() -> Iterator[list[int]]:
    """Processes that are killed after the test."""
    found: list[int] = []
    yield found
    for child in found:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def fork(action: Callable[[], object]) -> int:
    """Call a function in a child process, which exits with 0, or with 1 if it failed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return child


def code_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_for_ever() -> None:
    while True:
        time.sleep(60)


def deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_for_ever()


def test_process_pool_does_not_end_the_run(experiment: Path) -> None:
    def work() -> None:
        with FORK.Pool(2) as pool:
            assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]

    for step in range(3, 6):
        trainer = CountingTrainer(experiment=experiment)
        trainer.train([At(step, work), SaveOnExit()], max_steps=step)
        assert trainer.global_step == step and trainer.stop.signum is None


def test_ctrl_c_in_a_child_does_not_reach_the_run() -> None:
    def end_one() -> None:
        reader, writer = os.pipe()
        child = fork(lambda: (os.write(writer, b"!"), wait_for_ever()))
        os.read(reader, 1)
        os.kill(child, signal.SIGINT)
        # Python's handler raises an exception, which `fork` turns into an exit code.
        assert code_of(child) == 1
        os.close(reader)
        os.close(writer)

    trainer = CountingTrainer()
    trainer.train([At(2, end_one)], max_steps=4)
    assert trainer.global_step == 4


def test_child_that_outlives_the_run(experiment: Path, children: list[int]) -> None:
    trainer = CountingTrainer(experiment=experiment)
    begin = time.monotonic()
    trainer.train([At(1, lambda: children.append(fork(wait_for_ever))), SaveOnExit()], max_steps=2)
    assert time.monotonic() - begin < ENOUGH
    assert not Experiment(experiment).is_running()
    CountingTrainer(experiment=experiment).train([SaveOnExit()], max_steps=3)


def test_run_ends_while_children_hold_its_sockets(children: list[int]) -> None:
    # A copy that no Python hook has closed, like that of a child process forked by a library.
    stop = StopRequest(print)
    with stop:
        assert stop._sockets is not None
        copy = os.dup(stop._sockets[1].fileno())
    os.close(copy)


def test_lock_of_a_killed_owner_with_a_living_child(tmp_path: Path) -> None:
    reader, writer = os.pipe()

    def own() -> None:
        lock = DirectoryLock(tmp_path / "locked")
        lock.take()
        os.write(writer, str(fork(wait_for_ever)).encode())
        os.kill(os.getpid(), signal.SIGKILL)

    assert code_of(fork(own)) == -signal.SIGKILL
    grandchild = int(os.read(reader, 20))
    try:
        lock = DirectoryLock(tmp_path / "locked")
        assert re.fullmatch(r"took over the lock of process \d+ on .*, which ended without .*", str(lock.take()))
        lock.release()
    finally:
        os.kill(grandchild, signal.SIGKILL)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("make", "error", "code"), [(CountingTrainer, RuntimeError("no"), 1), (tiny_trainer, SystemExit(7), 7)]
)
def test_exception_in_a_child_does_not_end_the_run(
    make: Callable[..., Trainer], error: BaseException, code: int, experiment: Path
) -> None:
    """As after ``if os.fork() == 0: work(); sys.exit()``, which goes through `train` in the child."""
    codes = []

    def leave() -> None:
        child = os.fork()
        if child == 0:
            raise error
        codes.append(code_of(child))

    trainer = make(experiment=experiment)
    trainer.train([At(2, leave), JSONWriter(), SaveOnExit()], max_steps=3)
    assert codes == [code]
    assert trainer.run.checkpoints.steps() == [3]
    assert (experiment / "run.json").read_text().count('"finished"') == 1


@pytest.mark.parametrize(("target", "said"), [(wait_for_ever, False), (deaf, True)])
def test_processes_are_killed_if_they_ignore_signals(
    target: Callable[[], None], said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    process = FORK.Process(target=target)
    # A child that ignores signals needs time to do so.
    helper = StartProcOrThread(process, timeout=0.2 if said else 5.0)
    begun = threading.Event()
    CountingTrainer().train([helper, CallbackFactory(after_train=lambda self: begun.wait(0.5))][::-1], max_steps=1)
    assert process.exitcode == (-signal.SIGKILL if said else -signal.SIGTERM)
    assert ("is killed" in capsys.readouterr().out) == said


@pytest.mark.parametrize("stop", [lambda: None, None])
def test_thread_that_was_told_to_end_and_does_not_is_reported(stop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="deaf")
    helper = StartProcOrThread(thread, stop=stop, timeout=0.0)
    CountingTrainer().train([helper], max_steps=1)
    assert thread.daemon and thread.is_alive()
    said = "deaf did not end within 0 s and is left running" in capsys.readouterr().out
    assert said == (stop is not None)
    release.set()
    thread.join()
