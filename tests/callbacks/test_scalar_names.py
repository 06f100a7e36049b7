"""Names of scalars that no callback records are errors before the first step."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain import Callback, KerasTrainer
from prototrain.callbacks import (
    CallbackFactory,
    EarlyStopping,
    Inferencer,
    InferenceRunner,
    MaxSaver,
    MinSaver,
    Priority,
    ScalarStats,
    StatMonitorParamSetter,
    Summaries,
    Validation,
)
from prototrain.errors import CallbackError, DataError
from tests.tiny import CountingTrainer, tiny_arrays, tiny_build, tiny_datasets, tiny_trainer


class Own(Inferencer):
    """Has names that are not known before a pass."""

    def sums(self, net: Any, size: tf.Tensor) -> list[Any]:
        return [tf.reduce_mean(net["loss"])]

    def result(self, sums: Any) -> dict[str, float]:
        return {"lossy": sums[0]}


def stops(stat: str) -> Callback:
    return EarlyStopping(stat, mode="min", patience=2)


def halves(stat: str) -> Callback:
    return StatMonitorParamSetter("learning_rate", stat, float, mode="min", last_k=2)


def stats(**options: Any) -> Callback:
    return InferenceRunner("vld", ScalarStats("loss"), **options)


NEAR = "there is no scalar 'vld/lossy'; did you mean 'vld/loss'? there are: vld/accuracy, vld/loss"
WRONG: list[tuple[Callable[[], list[Callback]], str]] = [
    (lambda: [Validation().every(steps=10), MinSaver("vld/lossy").every(steps=10)], f"MinSaver: {NEAR}"),
    (lambda: [Validation(), MaxSaver("val/loss")], "there is no scalar 'val/loss'; did you mean 'vld/loss'?"),
    (lambda: [Validation(), Summaries(), stops("loss")], "EarlyStopping: there is no scalar 'loss'; did you mean"),
    (lambda: [Validation(), halves("trn/loss")], "no scalar 'trn/loss'; did you mean 'vld/loss'?"),
    (lambda: [Summaries(), MinSaver("vld/loss")], "'trn/loss'? there are: trn/*"),
    (lambda: [stats(), MinSaver("vld/mistakes")], "there are: vld/loss"),
    (lambda: [MinSaver("vld/loss")], "no scalar 'vld/loss'; there are: none yet"),
    (lambda: [Validation(), stats()], "Validation and InferenceRunner"),
    (lambda: [Validation(), Validation(batches=1)], "Validation and Validation"),
    (lambda: [stats(), Validation("tst", prefix="vld")], "InferenceRunner"),
    (lambda: [Validation("val")], "Validation: datasets() gives no 'val'; did you mean 'vld'? it gives trn, vld, tst"),
    (lambda: [InferenceRunner("val", [])], "InferenceRunner: datasets() gives no 'val'; did you mean 'vld'?"),
]


def test_unknown_name_is_an_error_before_the_first_step(experiment: Path) -> None:
    trainer = tiny_trainer(experiment, datasets=lambda: {**tiny_datasets(), "tst": tiny_datasets()["vld"]})
    for make, words in WRONG:
        with pytest.raises((CallbackError, DataError), match=re.escape(words)):
            trainer.train(make(), max_steps=20)
        assert trainer.global_step == 0


def measure(callback: Callback) -> None:
    callback.trainer.monitors.put_scalar("vld/lossy", 1.0)


def test_unknown_name_is_an_error_in_the_step(experiment: Path) -> None:
    trainer = tiny_trainer(experiment)
    own = [CallbackFactory(trigger=measure), CallbackFactory(trigger=measure)]
    for number, (callbacks, words) in enumerate(
        (
            ([Summaries(), stops("trn/lossy")], "no scalar 'trn/lossy'; did you mean 'trn/loss'"),
            ([InferenceRunner("vld", [ScalarStats("loss"), ScalarStats("loss")])], "two of its inferencers"),
            (own, "CallbackFactory and CallbackFactory 2 both record 'vld/lossy' at step 3"),
        ),
        start=1,
    ):
        with pytest.raises(CallbackError, match=words):
            trainer.train([callback.every(steps=1) for callback in callbacks], max_steps=number)
        assert trainer.global_step == number


def build(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    tf.summary.scalar("length", tf.norm(net.logits))
    return net


def own_evaluate(dataset: str, batches: int) -> dict[str, float]:
    return {"lossy": 1.0}


def test_possible_names_are_accepted(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = tiny_trainer(experiment, build=build)
    sources = [
        Summaries().every(steps=1),
        Validation(batches=1),
        stats(prefix="whole"),
        InferenceRunner("vld", Own(), prefix="open"),
        Validation(prefix="own", evaluate=own_evaluate),
    ]
    savers = [MinSaver(name) for name in ("whole/loss", "trn/length", "open/lossy", "own/lossy", "hyper/learning_rate")]
    with pytest.raises(CallbackError, match="no scalar 'hyper/learning_rate'"):  # after the step
        trainer.train([*sources, *savers], max_steps=1)
    assert trainer.global_step == 1 and "WARNING: MinSaver" not in capsys.readouterr().out
    own = CallbackFactory(trigger=measure, priority=Priority.EVALUATE)
    trainer.train([Validation(), own, MinSaver("vld/lossy")], max_steps=2)
    warning = "WARNING: MinSaver: there is no scalar 'vld/lossy'; did you mean 'vld/loss'?"
    assert trainer.global_step == 2 and capsys.readouterr().out.count(warning) == 1


def test_custom_trainer_may_record_any_scalar(experiment: Path) -> None:
    CountingTrainer(experiment=experiment).train([MinSaver("any/name").every(steps=9)], max_steps=0)


def test_metrics_of_a_keras_model_are_known(experiment: Path) -> None:
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    data = tiny_arrays()["x"], tiny_arrays()["y"]
    trainer = KerasTrainer(model, data, validation=data, batch_size=8, experiment=experiment)
    with pytest.raises(CallbackError, match="no scalar 'vld/mea'; did you mean 'vld/mae'"):
        trainer.train([Validation(), MinSaver("vld/mea")], max_steps=2)
    trainer.train([Validation(), MinSaver("vld/mae")], max_steps=2)
    assert trainer.global_step == 2
