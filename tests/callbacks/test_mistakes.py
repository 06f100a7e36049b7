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
    EnableCallbackIf,
    ExponentialMovingAverage,
    HyperParam,
    HyperParamSetterWithFunc,
    InferenceRunner,
    KerasCallback,
    KerasMetric,
    LearningRate,
    MLflowWriter,
    ModelSaver,
    Monitor,
    MovingAverageSummary,
    PeriodicTrigger,
    ProcessTensors,
    RunOp,
    ScalarPrinter,
    ScalarStats,
    ScheduledHyperParamSetter,
    StartProcOrThread,
    StopAfter,
    StopOnNaN,
    Validation,
)
from prototrain.errors import CallbackError
from tests.tiny import CountingTrainer, Recorder, tiny_trainer


def setter() -> HyperParamSetterWithFunc:
    return HyperParamSetterWithFunc("learning_rate", lambda epoch, rate: -rate)


ARGUMENTS: list[tuple[Callable[..., Any], tuple[dict[str, Any] | Any, ...], str]] = [
    (lambda **given: Recorder().every(**given), ({"steps": n} for n in (0, -1, 1.5, True)), "interval in steps must"),
    (PeriodicTrigger, (Callback(),), r"has no trigger\(\)"),
    (ExponentialMovingAverage, (0.0, 1.0, 2.0), "between 0 and 1"),
    (ModelSaver, ({"max_to_keep": 0}, {"max_to_keep": -1}), "max_to_keep must be a whole number"),
    (EarlyStopping, ({"stat": "x", "mode": "auto", "patience": 1},), 'mode must be "min" or "max"'),
    (StopAfter, ({"hours": 0.0}, {"hours": -1.0}), "give a time"),
    (Best, ({"mode": "lowest"}, {"mode": "min", "min_delta": -1.0}), "m(ode|in_delta) must be"),
    (ModelSaver, ({"max_to_keep": 2.5},), "max_to_keep must be a whole number"),
    (ModelSaver().every, ({"seconds": "auto", "steps": 5},), "takes no steps"),
    (lambda names: MovingAverageSummary(names), ("*", ["loss"]), "not names or regular expressions"),
    (lambda pattern: ScalarPrinter(whitelist=[pattern]), ("*",), "not a regular expression"),
    (lambda inferencers: InferenceRunner("vld", inferencers), (["loss"], []), "takes inferencers"),
    (KerasMetric, ("auc",), "KerasMetric takes a metric"),
    (StartProcOrThread, (print, [print]), "takes processes and threads"),
    (RunOp, (1, tf.constant(1)), "RunOp takes a function"),
    (HyperParam, (0.5,), "HyperParam takes a name, a variable"),
    (lambda one: one.every(steps=2, before_train=True), (RunOp(print), setter()), "leave out before_train"),
    (lambda one: EnableCallbackIf(one, bool), (Recorder().every(seconds=1),), "seconds"),
    (MLflowWriter().needed, ("nosuchlib.part",), r"needs nosuchlib, .*'prototrain\[mlflow\]'"),
]


@pytest.mark.parametrize(
    ("make", "given", "message"), [(make, one, message) for make, given, message in ARGUMENTS for one in given]
)
def test_wrong_arguments(make: Callable[..., Any], given: Any, message: str) -> None:
    with pytest.raises(CallbackError, match=message):
        make(**given) if isinstance(given, dict) else make(given)


class NoMonitor(Monitor):
    def trigger_step(self) -> None:
        self.trainer.monitors.put_scalar("x", 1.0)


class ArrayTrainer(CountingTrainer):
    def run_step(self) -> Any:
        return {"loss": np.ones(2)}


def scheduled() -> CountingTrainer:
    trainer = CountingTrainer()
    trainer.optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    return trainer


def whole() -> HyperParam:
    return HyperParam(tf.Variable(3), name="whole")


def renamed() -> HyperParam:
    return HyperParam("learning_rate", name="rate")


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
        (tiny_trainer, [ScheduledHyperParamSetter(whole(), [(0, 1.5)])], "cannot become 1.5"),
        (tiny_trainer, [HyperParamSetterWithFunc(whole(), lambda *_: math.nan).every(steps=1)], "cannot become nan"),
        (tiny_trainer, [ScheduledHyperParamSetter(whole(), [(0, 1), (2, 2)], interp="linear")], "leave out interp"),
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
            "both set learning_rate",
        ),
        (tiny_trainer, [setter(), ScheduledHyperParamSetter(renamed(), [(1, 0.5)])], "both set rate"),
        (tiny_trainer, [LearningRate(halves), ScheduledHyperParamSetter(renamed(), [(1, 0.5)])], "both set the learn"),
        (
            tiny_trainer,
            [HyperParamSetterWithFunc(whole(), max), ScheduledHyperParamSetter(whole(), [(1, 2)])],
            "both record hyper/whole",
        ),
        (
            tiny_trainer,
            [KerasCallback(keras.callbacks.ReduceLROnPlateau()), LearningRate(halves)],
            "both set the learn",
        ),
        (CountingTrainer, [InferenceRunner(tf.data.Dataset.range(3), ScalarStats("x"))], "needs a trainer of a model"),
        (tiny_trainer, [Validation(evaluate=lambda *_: 0.5)], "returned 0.5"),  # type: ignore[arg-type,return-value]
        (ArrayTrainer, [StopOnNaN()], "must be a single number"),
        (tiny_trainer, [setter()], "a learning rate is not negative"),
        (CountingTrainer, [NoMonitor()], "NoMonitor must define put_scalar"),
        (tiny_trainer, [LearningRate(lambda step: math.cos(step))], "the schedule failed: .*functions"),
        (tiny_trainer, [LearningRate(lambda step: np.cos(step))], "the schedule failed: .*functions"),
        (tiny_trainer, [LearningRate(lambda step: 0.1 if step < 5 else 0.01)], "tf.where, not if"),
    ],
)
def test_callbacks_that_do_not_fit_the_trainer(trainer: Any, callbacks: list[Callback], message: str) -> None:
    with pytest.raises(Exception, match=message):
        trainer().train(callbacks, max_steps=1)
