"""A name of a scalar that will not come shows before the first step, and nothing that is right is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import keras
import pytest

from prototrain import Callback, KerasTrainer
from prototrain.callbacks import (
    CallbackFactory,
    EarlyStopping,
    HyperParam,
    InferenceRunner,
    LearningRate,
    MaxSaver,
    MinSaver,
    Priority,
    SaveOnExit,
    ScalarPrinter,
    ScalarStats,
    StatMonitorParamSetter,
    Summaries,
    Validation,
)
from prototrain.errors import CallbackError
from tests.tiny import tiny_arrays, tiny_trainer


def halving(stat: str) -> Callback:
    param = HyperParam("learning_rate")
    return StatMonitorParamSetter(param, stat, float, mode="min", last_k=2)


GO_BY: list[Callable[[str], Callback]] = [
    MinSaver,
    MaxSaver,
    lambda stat: EarlyStopping(stat, mode="min", patience=2),
    halving,
]


@pytest.mark.parametrize("make", GO_BY, ids=["MinSaver", "MaxSaver", "EarlyStopping", "StatMonitorParamSetter"])
def test_a_mistyped_name_is_an_error_before_the_first_step(make: Callable[[str], Callback], experiment: Path) -> None:
    trainer, by = tiny_trainer(experiment), make("vld/lossy")
    rate = [] if make is halving else [LearningRate(lambda step: 0.01)]
    stock = [Validation().every(steps=10), ScalarPrinter(), *rate, SaveOnExit()]
    with pytest.raises(CallbackError) as caught:
        trainer.train([*stock, by.every(steps=10)], max_steps=20)
    assert str(caught.value) == (
        f"{by.name}: there is no scalar 'vld/lossy'; did you mean 'vld/loss'? there are: vld/accuracy, vld/loss"
    )
    assert trainer.global_step == 0


@pytest.mark.parametrize(
    ("stat", "others"),
    [
        ("vld/loss", []),
        ("trn/lossy", []),
        ("vdl/loss", []),
        ("vld/lossy", [InferenceRunner("vld", ScalarStats("loss"))]),
        ("vld/lossy", [Validation("vld", evaluate=lambda dataset, batches: {"lossy": 1.0})]),
        ("vld/lossy", [Summaries(prefix="vld")]),
    ],
    ids=["right", "of the step", "another prefix", "of an inferencer", "of an own evaluation", "of a summary"],
)
def test_what_may_come_is_not_asked_for(
    stat: str, others: list[Callback], experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = tiny_trainer(experiment)
    with suppress(CallbackError):  # of what does not come, behind the step
        trainer.train([Validation().every(steps=1), *others, MinSaver(stat).every(steps=1)], max_steps=1)
    assert trainer.global_step == 1
    assert "there is no scalar" not in capsys.readouterr().out


class Measures(Callback):
    priority = Priority.EVALUATE

    def trigger_step(self) -> None:
        measure(self)


def measure(callback: Callback) -> None:
    callback.trainer.monitors.put_scalar("vld/lossy", 1.0)


@pytest.mark.parametrize(
    "own",
    [
        Measures(),
        CallbackFactory(trigger=measure, priority=Priority.EVALUATE).every(steps=1),
        CallbackFactory(trigger=functools.partial(measure), priority=Priority.EVALUATE).every(steps=1),
    ],
    ids=["a callback", "a function", "a partial one"],
)
def test_where_code_of_the_user_s_may_record_it_there_is_a_warning(
    own: Callback, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = tiny_trainer(experiment)
    trainer.train([own, Validation().every(steps=1), MinSaver("vld/lossy").every(steps=1)], max_steps=2)
    said = capsys.readouterr().out
    assert said.count("WARNING: MinSaver: there is no scalar 'vld/lossy'; did you mean 'vld/loss'?") == 1
    assert trainer.global_step == 2


def test_a_keras_model_s_metrics_are_known(experiment: Path) -> None:
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    data = tiny_arrays()["x"], tiny_arrays()["y"]
    trainer = KerasTrainer(model, data, validation=data, batch_size=8, experiment=experiment)
    with pytest.raises(CallbackError, match="no scalar 'vld/mea'; did you mean 'vld/mae'"):
        trainer.train([Validation(), MinSaver("vld/mea")], max_steps=2)
    trainer = KerasTrainer(model, data, validation=data, batch_size=8, experiment=experiment)
    trainer.train([Validation(), MinSaver("vld/mae"), SaveOnExit()], max_steps=2)
    assert trainer.global_step == 2
