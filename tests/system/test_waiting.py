"""Messages for slow operations before the first step, and signals that interrupt them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from prototrain.callbacks import SaveOnExit, Validation
from prototrain.system.terminal import announcing
from tests.conftest import ROOT
from tests.test_exits import WhileSaving, send
from tests.tiny import CountingTrainer, Recorder, tiny_arrays, tiny_datasets, tiny_trainer


class Impatient(threading.Timer):
    """A timer that fires at once."""

    def start(self) -> None:
        self.function(*self.args)

    def cancel(self) -> None: ...


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prototrain.system.terminal.Timer", Impatient)


def test_only_slow_operations_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    said, heard = [], threading.Event()
    with announcing("restoring", said.append):
        pass
    assert said == []
    monkeypatch.setattr("prototrain.system.terminal.PATIENCE_SECONDS", 0.0)
    with (
        pytest.raises(ValueError, match="mine"),
        announcing("restoring", lambda text: (said.append(text), heard.set())),
    ):
        heard.wait(20)
        raise ValueError("mine")
    assert said == ["restoring ..."]


@pytest.mark.usefixtures("impatient")
def test_operations_before_the_first_step(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def lines() -> list[str]:
        # The data has its own message.
        said = [line for line in capsys.readouterr().out.splitlines() if line.endswith(" ...")]
        elsewhere = ("read", "datasets()", "setup of", "check_run of", "before_train of", "collecting the callbacks")
        return [line for line in said if not any(part in line for part in elsewhere)]

    tiny_trainer(experiment).train([Validation().every(steps=2), SaveOnExit()], max_steps=2)
    start = [
        "waiting for the first batch of the training data ...",
        "building the model ...",
        "checking the newest checkpoint ...",
        "testing the validation on 'vld' ...",
        "waiting for the first batches of 'vld' ...",
        "writing config, sources and environment ...",
        "tracing and compiling the step ...",
    ]
    assert lines() == start
    trainer = tiny_trainer(experiment)
    trainer.train([Validation().every(steps=2), SaveOnExit()], max_steps=4)
    assert lines() == [*start[:3], "restoring the checkpoint of step 2 ...", *start[3:]]
    tiny_trainer(experiment).train([SaveOnExit()], max_steps=2, fresh=True)
    assert f"deleting what is in {experiment} ..." in lines()


HOOKS = ("setup", "before_train", "before_epoch")


class Hooked(Recorder):
    """Sends SIGTERM in one of its hooks, all of which are slow."""

    def __init__(self, hook: str = "") -> None:
        super().__init__()
        self.hook = hook

    def _note(self, hook: str) -> None:
        super()._note(hook)
        if hook == self.hook:
            send(signal.SIGTERM)

    def state_dict(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("hook", "steps"),
    # Within an epoch, `before_epoch` is not called for a callback whose state was restored.
    [(hook, steps) for hook in HOOKS for steps in (0, 2) if (hook, steps) != ("before_epoch", 2)],
)
def test_signal_in_a_hook_ends_the_run_after_it(hook: str, steps: int, experiment: Path) -> None:
    if steps:
        CountingTrainer(experiment=experiment).train([Hooked(), SaveOnExit()], max_steps=steps)
    trainer, last = CountingTrainer(experiment=experiment), Recorder()
    with pytest.raises(SystemExit) as caught:
        trainer.train([Hooked(hook), last, SaveOnExit()], max_steps=5)
    assert caught.value.code == 143
    assert trainer.global_step == (0 if hook == "setup" else steps)  # this comes before the restore
    assert last.steps(hook) == []
    assert trainer.run.checkpoints.steps() == ([steps] if steps else [])


def test_signal_interrupts_the_first_validation(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    is_over = threading.Event()

    def endlessly_slow() -> Any:
        send(signal.SIGTERM)
        is_over.wait(60)
        yield tiny_arrays(8)

    signature = tiny_datasets()["vld"].element_spec
    vld = tf.data.Dataset.from_generator(endlessly_slow, output_signature=signature)
    trainer = tiny_trainer(experiment, datasets=lambda: tiny_datasets() | {"vld": vld})
    try:
        with pytest.raises(SystemExit) as caught:
            trainer.train([Validation(), SaveOnExit()], max_steps=5)
        assert not is_over.is_set()
    finally:
        is_over.set()
    assert caught.value.code == 143 and trainer.global_step == 0
    assert "SIGTERM: stopping after this step and saving; Ctrl-C now exits at once" in capsys.readouterr().out


def test_signal_while_restoring(experiment: Path) -> None:
    for steps in (2, 4):
        trainer = CountingTrainer(experiment=experiment)
        trainer.state["slow"] = WhileSaving(None, reading=lambda: send(signal.SIGINT))
        if steps == 2:
            trainer.train([SaveOnExit()], max_steps=steps)
    with pytest.raises(KeyboardInterrupt):
        trainer.train([SaveOnExit()], max_steps=4)
    assert trainer.global_step == 2 and trainer.run.checkpoints.steps() == [2]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_interrupts_a_native_wait(signum: int, code: int) -> None:
    """As inside TensorFlow, the main thread does not return to the interpreter."""
    program = (
        "import ctypes, sys\nfrom prototrain.system.signals import LeavingAtOnce\n"
        "with LeavingAtOnce():\n    print('waiting', flush=True)\n"
        "    while True:\n        ctypes.CDLL(None).sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT) as waiting:
        assert waiting.stdout is not None and waiting.stdout.readline() == "waiting\n"
        waiting.send_signal(signum)
        assert waiting.wait(20) == code
