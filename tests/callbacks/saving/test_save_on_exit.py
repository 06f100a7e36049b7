"""`SaveOnExit` after steps that failed or stopped; tests/test_exits.py has the other ways out of a run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tensorflow as tf

from prototrain.callbacks import CallbackFactory, ModelSaver, SaveOnExit, StopOnNaN
from prototrain.errors import NonFiniteError
from tests.callbacks.helpers import kept
from tests.tiny import CountingTrainer, tiny_trainer


def test_weights_that_a_callback_sets_at_the_end_are_saved(experiment: Path) -> None:
    def average(self: CallbackFactory) -> None:
        for variable in self.trainer.trained_variables.values():
            variable.assign(tf.ones_like(variable))

    trainer = tiny_trainer(experiment)
    trainer.train([CallbackFactory(after_train=average), ModelSaver().every(steps=2), SaveOnExit()], max_steps=4)
    saved = trainer.run.checkpoints.newest().variables()
    assert all((saved[name] == 1).all() for name in trainer.trainable)
    trainer.variables["logits/bias"].assign([2.0, 2.0])
    trainer.save()
    assert (trainer.run.checkpoints.newest().variables()["logits/bias"] == 2).all()
    assert kept(experiment) == ["step-0000000002", "step-0000000004"]


class Breaks(CountingTrainer):
    """Returns a scalar that is not finite in its fourth step, after it has changed its state."""

    def run_step(self) -> dict[str, float]:
        return {**super().run_step(), "other": -math.inf if self.global_step == 3 else 0.0}


def test_incomplete_step_is_saved_aside(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callbacks = [SaveOnExit(), ModelSaver().every(steps=2), StopOnNaN()]
    with pytest.raises(NonFiniteError):
        Breaks(experiment=experiment).train(callbacks, max_steps=6)
    assert kept(experiment) == ["failed-0000000003", "step-0000000002"]
    assert "a resume continues from the checkpoint of step 2" in capsys.readouterr().out
    resumed = CountingTrainer(experiment=experiment)
    resumed.train(callbacks, max_steps=6)
    assert resumed.state["total"] == 21
