"""Wrong arguments of callbacks are one-line errors in the constructor or before the first step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain.callbacks import (
    Best,
    Callback,
    EarlyStopping,
    ExponentialMovingAverage,
    GradientNorm,
    GraphProfiler,
    HyperParam,
    Inferencer,
    InferenceRunner,
    LearningRate,
    MLflowWriter,
    ModelSaver,
    Monitor,
    PeriodicCallback,
    PeriodicTrigger,
    ProcessTensors,
    ProxyCallback,
    ScheduledHyperParamSetter,
    StopAfter,
    Validation,
)
from prototrain.errors import CallbackError
from tests.tiny import CountingTrainer, Recorder, tiny_trainer

ARGUMENTS: list[tuple[Callable[..., Any], tuple[dict[str, Any] | Any, ...], str]] = [
    (lambda **given: Recorder().every(**given), ({},), "say how often"),
    (lambda **given: Recorder().every(**given), ({"steps": n} for n in (0, -1, 1.5, True)), "interval in steps must"),
    (lambda **given: Recorder().every(**given), ({"seconds": n} for n in (0, "3", float("nan"))), "in seconds must"),
    (lambda **given: Recorder().every(**given), ({"epochs": 0},), "interval in epochs must be positive, got 0"),
    (PeriodicTrigger, (Callback(),), r"has no trigger\(\)"),
    (lambda **given: PeriodicCallback(Recorder(), **given), ({}, {"every_k_steps": 0}), "a positive whole number"),
    (lambda **given: PeriodicCallback(Recorder(), **given), ({"every_k_epochs": 1.5},), "a positive whole number"),
    (ExponentialMovingAverage, (0.0, 1.0, 2.0), "between 0 and 1"),
    (lambda **given: ScheduledHyperParamSetter("rate", **given), ({"schedule": []},), "ScheduledHyperParamSetter/rate"),
    (
        lambda given: ScheduledHyperParamSetter("rate", given),
        ([(3, 1), (3, 2)], [(0, 1), (2.5, 2)]),
        "whole numbers in ascending order",
    ),
    (lambda given: ScheduledHyperParamSetter("rate", [(1, 1)], interp=given), ("cubic",), "interp must be"),
    (GraphProfiler, ({"steps": 0},), "at least 1"),
    (ModelSaver, ({"max_to_keep": 0}, {"max_to_keep": -1}), "max_to_keep must be at least 1"),
    (ModelSaver, ({"interval": "often"},), "interval must be"),
    (ModelSaver, ({"interval": "auto", "failures_per_day": 0}, {"failures_per_day": 2.0}), "must be positive, and is"),
    (lambda: ModelSaver(interval="auto").every(steps=3), ({},), r"leave out \.every\(\)"),
    (EarlyStopping, ({"stat": "x", "mode": "auto", "patience": 1},), 'mode must be "min" or "max"'),
    (EarlyStopping, ({"stat": "x", "mode": "min", "patience": 0},), "patience must be at least 1"),
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


def halves(step: Any) -> Any:
    return 1 / 2**step


@pytest.mark.parametrize(
    ("trainer", "callbacks", "message"),
    [
        (CountingTrainer, [ModelSaver()], "ModelSaver needs a directory"),
        (CountingTrainer, [Validation()], "CountingTrainer has no evaluate"),
        (tiny_trainer, [Validation(batches=-1)], "Validation: batches must be a whole number, 0 for all, got -1"),
        (CountingTrainer, [Validation(evaluate=lambda *_: None).every(steps=1)], "returned None, not scalars by name"),
        (
            CountingTrainer,
            [InferenceRunner(tf.data.Dataset.from_tensors({"x": [1.0]}), Inferencer())],
            "CountingTrainer must define build",
        ),
        (CountingTrainer, [ScheduledHyperParamSetter("no_such", [(1, 1)])], "no variable 'no_such'"),
        (CountingTrainer, [ScheduledHyperParamSetter(HyperParam(SimpleNamespace(), "size"), [(1, 1)])], "no attribute"),
        (CountingTrainer, [LearningRate(halves)], "CountingTrainer has none"),
        (scheduled, [LearningRate(halves)], "made with a schedule"),
        (CountingTrainer, [GradientNorm()], "CountingTrainer has no optimizer"),
        (CountingTrainer, [ExponentialMovingAverage(0.5)], "CountingTrainer has no trainable variables"),
        (
            CountingTrainer,
            [EarlyStopping("vld/x", mode="min", patience=1, restore_best=True)],
            "CountingTrainer has no variables in its state",
        ),
        (CountingTrainer, [ProcessTensors("lost", print).every(steps=1)], "there is no tensor lost"),
        (tiny_trainer, [ProcessTensors("lost", print).every(steps=1)], "no tensor 'lost' in the step; there are: x, y"),
        (
            tiny_trainer,
            [LearningRate(halves), ScheduledHyperParamSetter("learning_rate", [(1, 0.5)])],
            "both set the learning rate",
        ),
        (tiny_trainer, [LearningRate(lambda step: 0.1 if step < 5 else 0.01)], "tf.where instead of if"),
    ],
)
def test_callbacks_that_do_not_fit_the_trainer(
    trainer: Callable[[], CountingTrainer], callbacks: list[Callback], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        trainer().train(callbacks, max_steps=1)


@pytest.mark.parametrize(
    ("base", "members", "message"),
    [
        (Callback, ["_trigger_epoch"], "Old has _trigger_epoch, .* call it trigger_epoch"),
        (ProxyCallback, ["_setup_graph"], "_setup_graph, .* call it setup"),
        (Monitor, ["process_scalar"], "process_scalar, .* call it put_scalar"),
        (Callback, ["_chief_only"], "_chief_only, .* call it chief_only"),
    ],
)
def test_tensorpack_hook_names_are_errors(base: type[Any], members: list[str], message: str) -> None:
    with pytest.raises(CallbackError, match=message):
        type("Old", (base,), dict.fromkeys(members, lambda self: None))
    type("New", (Callback,), dict.fromkeys(["trigger_epoch", "_trigger_epoch"], lambda self: None))
