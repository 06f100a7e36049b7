"""Wrong arguments of callbacks are one-line errors in the constructor or before the first step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain.callbacks import (
    Best,
    Callback,
    EarlyStopping,
    ExponentialMovingAverage,
    HyperParam,
    HyperParamSetterWithFunc,
    LearningRate,
    MLflowWriter,
    ModelSaver,
    PeriodicTrigger,
    ProcessTensors,
    ScheduledHyperParamSetter,
    StopAfter,
    Validation,
)
from prototrain.errors import CallbackError
from tests.tiny import CountingTrainer, Recorder, tiny_trainer

ARGUMENTS: list[tuple[Callable[..., Any], tuple[dict[str, Any] | Any, ...], str]] = [
    (lambda **given: Recorder().every(**given), ({"steps": n} for n in (0, -1, 1.5, True)), "interval in steps must"),
    (PeriodicTrigger, (Callback(),), r"has no trigger\(\)"),
    (ExponentialMovingAverage, (0.0, 1.0, 2.0), "between 0 and 1"),
    (ModelSaver, ({"max_to_keep": 0}, {"max_to_keep": -1}), "max_to_keep must be at least 1"),
    (EarlyStopping, ({"stat": "x", "mode": "auto", "patience": 1},), 'mode must be "min" or "max"'),
    (StopAfter, ({"hours": 0.0}, {"hours": -1.0}), "give a time"),
    (Best, ({"mode": "lowest"}, {"mode": "min", "min_delta": -1.0}), "m(ode|in_delta) must be"),
    (MLflowWriter().needed, ("nosuchlib.part",), r"needs nosuchlib, .*'prototrain\[mlflow\]'"),
]


@pytest.mark.parametrize(
    ("make", "given", "message"), [(make, one, message) for make, given, message in ARGUMENTS for one in given]
)
def test_wrong_arguments(make: Callable[..., Any], given: Any, message: str) -> None:
    with pytest.raises(CallbackError, match=message):
        make(**given) if isinstance(given, dict) else make(given)


def scheduled() -> CountingTrainer:
    trainer = CountingTrainer()
    trainer.optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    return trainer


def whole() -> HyperParam:
    return HyperParam(tf.Variable(3), name="whole")


def halves(step: Any) -> Any:
    return 1 / 2**step


@pytest.mark.parametrize(
    ("trainer", "callbacks", "message"),
    [
        (CountingTrainer, [ModelSaver()], "ModelSaver needs a directory"),
        (tiny_trainer, [Validation(batches=-1)], "Validation: batches must be a whole number, 0 for all, got -1"),
        (tiny_trainer, [Validation("val")], "did you mean 'vld'"),
        (CountingTrainer, [ScheduledHyperParamSetter("no_such", [(1, 1)])], "no variable 'no_such'"),
        (scheduled, [LearningRate(halves)], "made with a schedule"),
        (
            scheduled,
            [HyperParamSetterWithFunc("learning_rate", min)],
            "the optimizer has its own schedule",
        ),
        (tiny_trainer, [HyperParamSetterWithFunc("fc0/kernel", min)], r"has the shape \[4, 6\]; it must be a scalar"),
        (tiny_trainer, [HyperParamSetterWithFunc(HyperParam(np, "phi"), min)], "no attribute 'phi'"),
        (tiny_trainer, [ScheduledHyperParamSetter(whole(), [(0, 1.5)])], "give whole values"),
        (tiny_trainer, [HyperParamSetterWithFunc(whole(), lambda *_: math.nan).every(steps=1)], "cannot become nan"),
        (tiny_trainer, [ScheduledHyperParamSetter(whole(), [(0, 1), (2, 2)], interp="linear")], "without interp"),
        (
            tiny_trainer,
            [HyperParamSetterWithFunc(whole(), lambda epoch, value: 0.5).every(steps=1)],
            "cannot become 0.5",
        ),
        (tiny_trainer, [ProcessTensors("lost", print).every(steps=1)], "no tensor 'lost' in the step; there are: x, y"),
        (
            tiny_trainer,
            [LearningRate(halves), ScheduledHyperParamSetter("learning_rate", [(1, 0.5)])],
            "both set the learning rate",
        ),
        (tiny_trainer, [LearningRate(halves), LearningRate(lambda step: 0.5)], "two LearningRate callbacks"),
        (
            tiny_trainer,
            [HyperParamSetterWithFunc("learning_rate", min), ScheduledHyperParamSetter("learning_rate", [(1, 0.5)])],
            "both record hyper/learning_rate",
        ),
        (tiny_trainer, [LearningRate(lambda step: 0.1 if step < 5 else 0.01)], "tf.where instead of if"),
    ],
)
def test_callbacks_that_do_not_fit_the_trainer(trainer: Any, callbacks: list[Callback], message: str) -> None:
    with pytest.raises(Exception, match=message):
        trainer().train(callbacks, max_steps=1)
