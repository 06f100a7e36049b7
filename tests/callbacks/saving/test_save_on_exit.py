"""`SaveOnExit`: every way out of a run saves the right step, and the resumed run equals an uninterrupted one."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from prototrain import Callback, StopTraining
from prototrain.callbacks import ModelSaver, SaveOnExit, StopOnNaN
from prototrain.errors import NonFiniteError
from tests.callbacks.helpers import Fails
from tests.tiny import CountingTrainer


class Exits(Callback):
    """Leaves the run after step 3 in one of many ways, once."""

    def __init__(self, how: Any) -> None:
        self.how = how

    def next_step(self, step: int) -> int | None:
        return 3 if step < 3 and self.how else None

    def trigger_step(self) -> None:
        if isinstance(self.how, signal.Signals):
            os.kill(os.getpid(), self.how)
        elif self.how is not None:  # a resumed run calls the failed callback again
            raise self.how("on purpose")


def test_last_checkpoint_counts_for_model_saver(experiment: Path) -> None:
    saver = ModelSaver(max_to_keep=2)
    CountingTrainer(experiment=experiment).train([Exits(StopTraining), saver.every(steps=1), SaveOnExit()], max_steps=6)
    assert kept(experiment) == ["step-0000000002", "step-0000000003"]
    with pytest.raises(RuntimeError):
        CountingTrainer(experiment=experiment).train([Fails(5), saver.every(steps=2), SaveOnExit()], max_steps=9)
    assert kept(experiment) == ["step-0000000004", "step-0000000005"]


def kept(experiment: Path) -> list[str]:
    return sorted(path.name for path in (experiment / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("how", "raised"),
    [
        (StopTraining, None),
        (RuntimeError, RuntimeError),
        (KeyboardInterrupt, KeyboardInterrupt),
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, SystemExit),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_callbacks_and_signals(experiment: Path, how: Any, raised: Any) -> None:
    """tests/test_exits.py does the same for compiled trainers."""
    first = CountingTrainer(experiment=experiment)
    if raised is None:
        first.train([SaveOnExit(), Exits(how)], max_steps=6)
    else:
        with pytest.raises(raised):
            first.train([SaveOnExit(), Exits(how)], max_steps=6)
    assert kept(experiment) == ["step-0000000003"]
    resumed, whole = CountingTrainer(experiment=experiment), CountingTrainer()
    resumed.train([SaveOnExit(), Exits(None)], max_steps=6)
    whole.train([], max_steps=6)
    assert kept(experiment) == ["step-0000000003", "step-0000000006"]
    assert resumed.state["total"] == whole.state["total"]


class Breaks(CountingTrainer):
    """Fails in its fourth step, after it has changed its state."""

    def __init__(self, error: type[Exception] | None = None, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.error = error

    def run_step(self) -> dict[str, float]:
        if self.global_step == 3 and self.error is StopTraining:
            raise StopTraining("nothing left to do")
        outputs = super().run_step()
        if self.global_step == 3 and self.error is not None:
            if self.error is NonFiniteError:
                return {"loss": math.nan}
            raise self.error("on purpose")
        return outputs


@pytest.mark.parametrize("error", [RuntimeError, NonFiniteError])
def test_incomplete_step_is_saved_aside(
    experiment: Path, error: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    callbacks = [SaveOnExit(), ModelSaver().every(steps=2), StopOnNaN()]
    with pytest.raises(error):
        Breaks(error, experiment=experiment).train(callbacks, max_steps=6)
    assert kept(experiment) == ["failed-0000000003", "step-0000000002"]
    assert "a resume continues from the checkpoint of step 2" in capsys.readouterr().out
    resumed = Breaks(experiment=experiment)
    resumed.train(callbacks, max_steps=6)
    assert resumed.state["total"] == 21


def test_stop_training_in_a_step(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Breaks(StopTraining, experiment=experiment).train([SaveOnExit()], max_steps=6)
    assert kept(experiment) == ["step-0000000003"]
    assert "stopped after step 3: nothing left to do" in capsys.readouterr().out
    resumed = Breaks(experiment=experiment)
    resumed.train([SaveOnExit()], max_steps=6)
    assert resumed.state["total"] == 21


def test_nothing_is_saved_without_a_step(experiment: Path) -> None:
    class RefusesToStart(Callback):
        def before_train(self) -> None:
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError):
        CountingTrainer(experiment=experiment).train([SaveOnExit(), RefusesToStart()], max_steps=6)
    assert not (experiment / "checkpoints").exists()
