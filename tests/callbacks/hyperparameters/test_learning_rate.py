from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain.callbacks import LearningRate, SaveOnExit, ScheduledHyperParamSetter, StopOnNaN
from prototrain.errors import ConfigError, NonFiniteError
from prototrain.trainers.tower import SimpleTrainer
from tests.tiny import Losses, tiny_model, tiny_trainer, values


def noted() -> Losses:
    return Losses("learning_rate")


def halves(step: tf.Tensor) -> tf.Tensor:
    return 0.01 * 0.5 ** (step / 2)


EXPECTED = {step + 1: pytest.approx(0.01 * 0.5 ** (step / 2)) for step in range(8)}


def test_rate_of_the_config_applies_without_the_callback(experiment: Path) -> None:
    tiny_trainer(experiment).train([LearningRate(lambda step: 0.5), SaveOnExit()], max_steps=2)
    trainer = tiny_trainer(experiment)
    trainer.train([], max_steps=4)
    assert trainer.outputs["learning_rate"] == pytest.approx(trainer.config["model.lr_schedule.constant.value"])


def test_rate_of_each_step_also_after_a_resume(experiment: Path) -> None:
    def trainer(experiment: Path | None = None) -> Any:
        return tiny_trainer(experiment, model__optimizer__method=lambda: keras.optimizers.AdamW(0.5))

    whole = trainer()
    whole.train([LearningRate(halves)], max_steps=8)
    trainer(experiment).train([LearningRate(halves), SaveOnExit()], max_steps=3)
    resumed, rates = trainer(experiment), noted()
    resumed.train([LearningRate(halves), SaveOnExit(), rates], max_steps=8)
    assert rates.by_step == {step: rate for step, rate in EXPECTED.items() if step > 3}
    assert values(resumed) == values(whole)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (lambda step: 0.1 * 0.5 ** (step // 2), lambda step: 0.1 * 0.5 ** (step // 2)),
        (lambda step: tf.gather([0.1, 0.2, 0.3, 0.4], step), lambda step: (step + 1) / 10),
    ],
)
def test_step_is_int_or_float_as_the_schedule_needs(schedule: Any, expected: Any) -> None:
    rates = noted()
    tiny_trainer().train([LearningRate(schedule), rates], max_steps=3)
    assert rates.by_step == {step + 1: pytest.approx(expected(step)) for step in range(3)}


def test_negative_rate_stops_at_its_step(experiment: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"learning rate is negative .* step 5 "):
        falling = LearningRate(lambda step: tf.where(step < 4, 0.1, -0.1))
        tiny_trainer(experiment).train([StopOnNaN(), falling, SaveOnExit()], max_steps=8)
    assert [path.name for path in (experiment / "checkpoints").iterdir()] == ["step-0000000004"]


@pytest.mark.parametrize("schedule", [lambda step: None, lambda step: tf.zeros([2]), lambda step: "fast"])
def test_schedule_returns_a_number(schedule: Any) -> None:
    with pytest.raises(ConfigError, match="scalar number"):
        tiny_trainer().train([LearningRate(schedule)], max_steps=1)


def test_constant_schedule_applies_before_the_first_step() -> None:
    trainer, rates = tiny_trainer(), noted()
    trainer.train([LearningRate(lambda step: 0.5)], max_steps=0)
    assert float(trainer.optimizer.learning_rate) == 0.5
    trainer.train([LearningRate(lambda step: 0.0), rates], max_steps=2)
    assert rates.by_step == {1: 0.0, 2: 0.0}


def test_config_needs_no_schedule_if_a_callback_sets_the_rate(experiment: Path) -> None:
    def without(experiment: Path | None = None) -> SimpleTrainer:
        model = tiny_model()
        del model.config["model.lr_schedule.method"]
        return SimpleTrainer(model, experiment=experiment)

    trainer = without(experiment)
    with pytest.raises(ConfigError, match="needs a learning rate, from the config or from a callback"):
        trainer.train([], max_steps=4)
    trainer.train([rates := noted(), LearningRate(halves), SaveOnExit()], max_steps=2)
    again = without(experiment)
    again.train([rates, LearningRate(halves), SaveOnExit()], max_steps=4)
    assert "changed" not in again.run.start_row() and rates.by_step == {s: EXPECTED[s] for s in range(1, 5)}
    setter, constant = without(), noted()
    setter.train([ScheduledHyperParamSetter("learning_rate", [(0, 0.25)]), constant], max_steps=1)
    assert constant.by_step == {1: 0.25}
