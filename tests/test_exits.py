"""Every way out of a run saves, and its resume is exact; with real signals, here and in other processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from prototrain import Callback, SimpleTrainer, StopTraining
from prototrain.callbacks import JSONWriter, ModelSaver, SaveOnExit, StopOnNaN, Summaries, Validation
from prototrain.experiment import checkpoint_steps
from tests.preloaded import Program
from tests.sweeps.test_processes import SLOW
from tests.tiny import At, CountingTrainer, environment, raising, rows, tiny_model, values

STEPS = 24
RAISES = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit}


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)


def callbacks(*more: Callback) -> list[Callback]:
    return [
        Validation().every(steps=6),
        Summaries().every(steps=3),
        JSONWriter(),
        *more,
        ModelSaver().every(steps=8),
        SaveOnExit(),
        StopOnNaN(),
    ]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """The variables and rows of an uninterrupted run."""
    directory = tmp_path_factory.mktemp("straight")
    trainer = SimpleTrainer(tiny_model(), experiment=directory)
    trainer.train(callbacks(), max_steps=STEPS)
    return values(trainer), rows(directory)


class WhileSaving:
    """A part of a checkpoint that takes long to write and to read, and receives a signal meanwhile."""

    def __init__(self, action: Callable[[], None] | None, reading: Callable[[], None] = lambda: None) -> None:
        self.action, self.reading = action, reading

    def write(self, prefix: str) -> None:
        if self.action is not None:
            self.action()
            self.action = None

    def read(self, prefix: str, meta: None) -> None:
        self.reading()


class WhileTracing(Callback):
    """Sends a signal when the compiled call is traced."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action

    def before_run(self) -> None:
        assert not tf.executing_eagerly()
        self.action()


class Validated(SimpleTrainer):
    """Calls a function in the validation of step 12."""

    action: Callable[[], None] | None = None

    def evaluate(self, dataset: str, batches: int = 0) -> Any:
        if self.global_step == 12 and self.action is not None:
            self.action()
        return super().evaluate(dataset, batches)


@pytest.mark.parametrize(
    ("where", "signum", "expected"),
    [
        ("tracing", signal.SIGINT, 0),
        ("validation", signal.SIGTERM, 12),
        ("a periodic save", signal.SIGINT, 8),
        ("the exit save", signal.SIGTERM, 7),
    ],
)
def test_signal_at_any_time_saves(where: str, signum: int, expected: int, straight: Any, tmp_path: Path) -> None:
    handlers = [signal.getsignal(number) for number in RAISES]
    trainer = Validated(tiny_model(), experiment=tmp_path)
    more: list[Callback] = []
    if where == "tracing":
        more = [WhileTracing(lambda: send(signum))]
    elif where == "validation":
        trainer.action = lambda: send(signum)
    else:
        trainer.state["slow"] = WhileSaving(lambda: send(signum))
    if where == "the exit save":
        more = [At(7, raising(StopTraining("enough")))]
    with pytest.raises(RAISES[signum]) as caught:
        trainer.train(callbacks(*more), max_steps=STEPS)
    if signum == signal.SIGTERM:
        assert caught.value.code == 143
    assert [signal.getsignal(number) for number in RAISES] == handlers
    assert signal.set_wakeup_fd(-1) == -1
    assert trainer.global_step == max(trainer.run.checkpoints.steps(), default=0)
    assert trainer.global_step == expected or (where == "tracing" and trainer.global_step == 1)

    again = Validated(tiny_model(), experiment=tmp_path)
    if "save" in where:
        again.state["slow"] = WhileSaving(None)
    again.train(callbacks(), max_steps=STEPS)
    assert values(again) == straight[0]
    if where != "the exit save":  # the step of a stop counts as the last one, at which all callbacks are due
        assert rows(tmp_path) == straight[1]


@pytest.mark.parametrize(
    ("error", "step"), [(RuntimeError("boom"), 1), (RuntimeError("boom"), 8), (StopTraining("enough"), 10)]
)
def test_exits_from_a_callback_save_the_step(error: Exception, step: int, tmp_path: Path) -> None:
    """After the first step, after a step with a checkpoint, and at the end of an epoch; it counts for `ModelSaver`."""
    trainer = CountingTrainer(experiment=tmp_path)
    saving = [ModelSaver(max_to_keep=1).every(steps=4), SaveOnExit()]
    with pytest.raises(RuntimeError) if isinstance(error, RuntimeError) else nullcontext():
        trainer.train([At(step, raising(error)), *saving], max_steps=STEPS, steps_per_epoch=5)
    assert trainer.run.checkpoints.steps() == [step] == [trainer.global_step]


def test_stop_request_in_another_thread(tmp_path: Path) -> None:
    trainer = CountingTrainer(experiment=tmp_path)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            trainer.train([At(5, lambda: trainer.stop.request(signal.SIGINT)), SaveOnExit()], max_steps=10)
        except KeyboardInterrupt as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended and trainer.global_step == 5 and trainer.run.checkpoints.steps() == [5]


SCRIPT = """
import sys, time
from prototrain.callbacks import SaveOnExit
from tests.tiny import At, CountingTrainer

class Slow(CountingTrainer):
    def run_step(self):
        time.sleep(0.01)
        return super().run_step()

class Part:
    def write(self, prefix):
        print("now writing", flush=True)
        time.sleep(30)
    def read(self, prefix, meta):
        pass

trainer = Slow(experiment=sys.argv[1])
trainer.state["part"] = Part()
trainer.train([SaveOnExit(), At(3, lambda: print("ready", flush=True))], max_steps=10**6)
"""


def wait_for(process: Program, word: str) -> str:
    for _, line in zip(range(200), process.stdout, strict=False):
        if word in line:
            return line
    raise AssertionError(f"{word!r} was not printed")


def test_exit_codes_and_two_signals(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SCRIPT)
    process = Program([str(tmp_path / "slow.py"), str(tmp_path)], environment())
    wait_for(process, "ready")
    process.send_signal(signal.SIGINT)
    wait_for(process, "now writing")
    process.send_signal(signal.SIGTERM)  # not Ctrl-C: no effect
    process.send_signal(signal.SIGINT)
    # Ctrl-C leaves at once: nothing is saved, and the next start deletes the partial checkpoint. A second one that
    # comes with the first, as from a program that passes it on, does not count.
    while process.wait(0.3) is None:
        process.send_signal(signal.SIGINT)
    assert process.returncode == 128 + signal.SIGINT
    process.stdout.close()
    assert [path.name[:5] for path in (tmp_path / "checkpoints").iterdir()] == [".tmp-"]


def test_process_ends_while_a_batch_is_being_made(tmp_path: Path) -> None:
    """The command line saves, prints no traceback, and resumes."""
    (tmp_path / "m.py").write_text(SLOW)
    (tmp_path / "slow").touch()
    checkpoints = tmp_path / "experiments" / "e" / "checkpoints"

    def start(steps: int) -> Program:
        settings = ["-s", f"model.num_steps={steps}", "-s", "trainer.checkpoint_save_interval=5"]
        return Program(["-m", "prototrain.cli", "run", "m", *settings], environment(), tmp_path)

    process = start(1000)
    try:
        while not checkpoint_steps(checkpoints):
            assert process.returncode is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output = process.stdout.read()
        assert process.wait(30) == 128 + signal.SIGTERM and "Traceback" not in output, output
    finally:
        process.kill()
    step = checkpoint_steps(checkpoints)[-1]
    assert f"saved step {step}" in output
    code, output = start(step + 5).finish()
    assert code == 0 and f"resumed at step {step}; data: " in output, output
