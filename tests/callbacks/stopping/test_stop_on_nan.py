"""`StopOnNaN`: the run ends at the non-finite step, and the step changes no variable."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import ModelDict
from prototrain.callbacks import LearningRate, StopOnNaN
from prototrain.errors import NonFiniteError
from tests.tiny import Losses, tiny_arrays, tiny_build, tiny_trainer, values

BAD = 3  # the batch, counted from 0, that is not finite


def datasets() -> dict[str, tf.data.Dataset]:
    """Five batches; "flag" is 0 in one of them, and 1 in the others."""
    flags = np.ones(40, np.float32)
    flags[8 * BAD : 8 * BAD + 8] = 0.0
    return {"trn": tf.data.Dataset.from_tensor_slices({**tiny_arrays(), "flag": flags}).batch(8)}


def infinite_loss(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    net = tiny_build(inputs, train_phase)
    net.loss -= tf.math.log(inputs["flag"][0])
    return net


def nan_gradient(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    net = tiny_build(inputs, train_phase)
    net.loss += tf.sqrt(tf.square(net.logits[0, 0] * inputs["flag"][0]))  # the slope of sqrt at 0 is infinite
    return net


@pytest.mark.parametrize(
    ("build", "optimizer", "each_step"),
    [(infinite_loss, "msgd", False), (nan_gradient, "adam", True)],
)
def test_non_finite_step_changes_no_variable(build: Any, optimizer: str, each_step: bool) -> None:
    """Includes batch statistics, the seed of dropout, and the optimizer's slots and learning rate."""

    def trainer() -> Any:
        return tiny_trainer(build=build, datasets=datasets, model__optimizer__method=optimizer)

    def callbacks() -> list[Any]:
        rate = LearningRate(lambda step: 0.01 * 0.9 ** tf.cast(step, tf.float32))
        return [rate, StopOnNaN(), *[Losses()] * each_step]

    stopped, whole = trainer(), trainer()
    with pytest.raises(NonFiniteError, match=f"not finite in step {BAD + 1}.*its update was not applied"):
        stopped.train(callbacks(), max_steps=5)
    whole.train(callbacks(), max_steps=BAD)
    assert stopped.global_step == BAD
    assert values(stopped) == values(whole)


def nan_loss(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    net = tiny_build(inputs, train_phase)
    net.loss += tf.math.log(inputs["flag"][0]) * 0.0  # log(0) * 0 is NaN
    return net


def test_without_it_the_run_continues() -> None:
    trainer = tiny_trainer(build=nan_loss, datasets=datasets)
    losses = Losses()
    trainer.train([losses], max_steps=5)
    assert math.isfinite(losses.by_step[BAD])
    assert math.isnan(losses.by_step[BAD + 1])
