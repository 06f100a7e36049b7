"""`StopOnNaN`: a non-finite step changes no variable, and no run saves or resumes from a non-finite state."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import SimpleTrainer, SyncReplicatedTrainer, Trainer
from prototrain.callbacks import LearningRate, MinSaver, ModelSaver, SaveOnExit, StopOnNaN
from prototrain.checkpoint.state import not_finite
from prototrain.checkpoint.store import verify
from prototrain.errors import CheckpointError, NonFiniteError
from tests.callbacks.helpers import Puts, kept, kept_steps
from tests.tiny import At, tiny_build, tiny_model, tiny_trainer

MEAN = "bn0/moving_mean"


def rate(step: int, value: float) -> LearningRate:
    return LearningRate(lambda now: tf.where(tf.equal(now, step), value, 0.01))


def saving(*more: Any) -> list[Any]:
    return [*more, ModelSaver(asynchronous=True).every(steps=2), SaveOnExit(), StopOnNaN()]


def ends(trainer: Trainer, callbacks: list[Any], message: str, *, steps: int = 10) -> None:
    with pytest.raises(NonFiniteError, match=message) as caught:
        trainer.train(callbacks, max_steps=steps)
    assert "\n" not in str(caught.value)


def saved_steps(experiment: Path, own: str) -> list[int]:
    """Return the steps of the checkpoints, after checking that only `own` is not finite in them."""
    found = kept_steps(experiment)
    for step in found:
        assert list(not_finite(verify(experiment / f"checkpoints/step-{step:010d}").variables())) == [own] * bool(own)
    return found


def masked_build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    mask = keras.Variable([0.0, -math.inf], trainable=False, name="mask")
    net.chosen = tf.cast(net.logits, tf.float32) + mask
    return net


def half(experiment: Path) -> Any:
    return tiny_trainer(experiment, build=masked_build, model__mixed_precision="mixed_float16")


def replicated(experiment: Path) -> Any:
    return SyncReplicatedTrainer(tiny_model(build=masked_build), towers="cpu:2", experiment=experiment)


@pytest.mark.parametrize("make", [half, replicated])
def test_non_finite_rates_and_statistics(make: Any, experiment: Path) -> None:
    """The model has a mask that is infinite from the start."""
    trainer = make(experiment)
    ends(
        trainer, saving(rate(5, math.nan)), "the learning rate is negative or not finite in step 6 .*learning_rate nan"
    )
    assert trainer.global_step == 5 and saved_steps(experiment, "mask") == [2, 4, 5]
    assert kept(experiment) == [f"step-{step:010d}" for step in (2, 4, 5)]
    trainer = make(experiment)
    mean = trainer.state[MEAN]
    spoil = At(7, lambda: mean.assign(tf.fill(mean.shape, math.nan)))
    ends(trainer, saving(rate(-1, 0.0), spoil), f"step 8 .*{MEAN} is not finite; .* the checkpoint of step 6")
    assert saved_steps(experiment, "mask") == [2, 4, 5, 6]
    assert all(name.startswith(("step-", "failed-")) for name in kept(experiment))


class Watches(Trainer):
    """Steps in Python, with a variable, an array and a best value; "w" is spoilt in its sixth step."""

    def __init__(self, experiment: Path | None = None) -> None:
        super().__init__(experiment=experiment)
        self.state["w"] = np.zeros(3)
        self.state["best"] = tf.Variable(math.inf)
        self.state["plain"] = math.inf

    def run_step(self) -> dict[str, float]:
        self.state["w"] += 1
        if self.global_step == 5:
            self.state["w"][1] = math.nan
        return {"loss": 1.0}


@pytest.mark.parametrize(
    ("callbacks", "steps"),
    [
        (saving(), [2, 4]),
        ([Puts(_4={"v": 2.0}, _8={"v": 1.0}), MinSaver("v").every(steps=4), StopOnNaN()], [4]),
        ([SaveOnExit(), StopOnNaN()], []),
    ],
    ids=["periodic", "the best", "on exit"],
)
def test_all_savers(
    callbacks: list[Any], steps: list[int], experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    goes_on = f"the checkpoint of step {steps[-1]}" if steps else "the start"
    ends(Watches(experiment), callbacks, f"w is not finite; a resume continues from {goes_on}")
    assert saved_steps(experiment, "best") == steps
    said = capsys.readouterr().out
    assert said.count("StopOnNaN: best is not finite before training and not checked") == 1


@pytest.mark.parametrize("kind", [float, np.array, tf.Variable])
def test_scalars_of_a_step_in_python(kind: Any) -> None:
    class Sums(Trainer):
        total = kind(0.0)

        def run_step(self) -> dict[str, Any]:
            added = math.inf if self.global_step == 4 else 1.0
            if kind is tf.Variable:
                self.total.assign_add(added)  # the same object in all steps
            else:
                self.total += added
            return {"total": self.total}

    ends(Sums(), [StopOnNaN()], "total is inf in step 5")


def test_non_finite_checkpoint_is_refused(experiment: Path) -> None:
    Watches(experiment).train([ModelSaver().every(steps=4)], max_steps=8)  # without StopOnNaN
    with pytest.raises(CheckpointError, match=r"w is not finite in .*step-0000000008; delete this checkpoint"):
        Watches(experiment).train([SaveOnExit(), StopOnNaN()], max_steps=9)
    shutil.rmtree(experiment / "checkpoints/step-0000000008")
    resumed = Watches(experiment)
    resumed.train([StopOnNaN()], max_steps=5)
    assert resumed.run.start_row().startswith("resumed at step 4")


def test_first_weights_that_are_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, weights = "bn0/moving_variance", tmp_path / "weights.npz"
    start = SimpleTrainer(tiny_model())
    start.variables[name].assign(tf.fill(start.variables[name].shape, math.inf))
    start.dump_weights(weights)
    trainer = SimpleTrainer(tiny_model(model__weights_load_path=str(weights)), experiment=tmp_path / "run")
    trainer.train([StopOnNaN(), SaveOnExit()], max_steps=2)
    assert trainer.global_step == 2 and f"{name} is not finite before training" in capsys.readouterr().out
