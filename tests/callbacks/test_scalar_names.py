"""A name of a scalar that will not come shows before the first step, and nothing that is right is refused."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

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
from prototrain.errors import CallbackError, DataError
from tests.tiny import tiny_arrays, tiny_build, tiny_datasets, tiny_trainer


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


class Own(ScalarStats):
    """Of the user's own, so that its names are not known."""


@pytest.mark.parametrize(
    ("stat", "others"),
    [
        ("vld/loss", []),
        ("hyper/learning_rate", []),
        ("trn/loss", [Summaries().every(steps=1)]),
        ("vld/lossy", [InferenceRunner("vld", Own("loss"))]),
        ("own/lossy", [Validation("vld", prefix="own", evaluate=lambda dataset, batches: {"lossy": 1.0})]),
    ],
    ids=["right", "of a setter", "of the step", "of an inferencer", "of an own evaluation"],
)
def test_what_may_come_is_not_asked_for(
    stat: str, others: list[Callback], experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = tiny_trainer(experiment)
    with suppress(CallbackError):  # of what does not come, behind the step
        trainer.train([Validation(), *others, MinSaver(stat).every(steps=1)], max_steps=1)
    assert trainer.global_step == 1
    assert "there is no scalar" not in capsys.readouterr().out


@pytest.mark.parametrize("by", [*GO_BY[:3]], ids=["MinSaver", "MaxSaver", "EarlyStopping"])
@pytest.mark.parametrize(
    ("stat", "callbacks", "words"),
    [
        ("val/loss", [Validation()], "no scalar 'val/loss'; did you mean 'vld/loss'?"),
        ("loss", [Validation(), Summaries()], "no scalar 'loss'; did you mean"),
        ("trn/loss", [Validation()], "no scalar 'trn/loss'; did you mean 'vld/loss'?"),
        ("vld/loss", [Summaries()], "no scalar 'vld/loss'; did you mean 'trn/loss'? there are: trn/*"),
        ("vld/mistakes", [InferenceRunner("vld", ScalarStats("loss"))], "there are: vld/loss"),
        ("vld/loss", [], "no scalar 'vld/loss'; there are: none yet"),
    ],
)
def test_what_nothing_records_is_an_error_before_the_first_step(
    by: Callable[[str], Callback], stat: str, callbacks: list[Callback], words: str, experiment: Path
) -> None:
    trainer = tiny_trainer(experiment)
    with pytest.raises(CallbackError, match=re.escape(words)) as caught:
        trainer.train([*callbacks, by(stat)], max_steps=2)
    assert trainer.global_step == 0 and by(stat).name in str(caught.value)


def test_a_scalar_that_the_step_has_not_is_an_error_where_it_is_needed(experiment: Path) -> None:
    trainer, stopping = tiny_trainer(experiment), EarlyStopping("trn/lossy", mode="min", patience=3)
    with pytest.raises(CallbackError, match="there is no scalar 'trn/lossy'; did you mean 'trn/loss'"):
        trainer.train([Summaries().every(steps=5), stopping.every(steps=5)], max_steps=20)
    assert trainer.global_step == 5


def test_what_the_model_gives_to_tf_summary_may_be_gone_by(experiment: Path) -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        net = tiny_build(inputs, train_phase)
        tf.summary.scalar("length", tf.norm(net.logits))
        return net

    saver = MinSaver("trn/length").every(steps=2)
    tiny_trainer(experiment, build=build).train([Summaries().every(steps=2), saver], max_steps=4)
    assert saver.callback.best.step in (2, 4)


TWICE = [
    ([Validation(batches=1), InferenceRunner("vld", ScalarStats("loss"))], "Validation and InferenceRunner", 0),
    ([Validation(), Validation(batches=1)], "Validation and Validation", 0),
    ([InferenceRunner("vld", ScalarStats("loss")), Validation("tst", prefix="vld")], "InferenceRunner", 0),
    ([Summaries().every(steps=3), Summaries().every(steps=2)], "two callbacks .* 'Summaries/trn'", 0),
    ([InferenceRunner("vld", [ScalarStats("loss"), Own("loss")], rehearse=False)], "two of its inferencers", 5),
]


@pytest.mark.parametrize(("callbacks", "words", "step"), TWICE, ids=range(len(TWICE)))
def test_two_sources_of_one_scalar_are_an_error(
    callbacks: list[Callback], words: str, step: int, experiment: Path
) -> None:
    def datasets() -> dict[str, tf.data.Dataset]:
        return {**tiny_datasets(), "tst": tiny_datasets()["vld"]}

    trainer = tiny_trainer(experiment, datasets=datasets)
    with pytest.raises(CallbackError, match=words):
        trainer.train([*callbacks, MinSaver("vld/loss").every(steps=20)] if step == 0 else callbacks, max_steps=10)
    assert trainer.global_step == step


def test_a_prefix_is_the_way_out(experiment: Path) -> None:
    runner = InferenceRunner("vld", ScalarStats("loss"), prefix="whole")
    trainer = tiny_trainer(experiment)
    trainer.train([Validation(batches=1), runner, MinSaver("whole/loss")], max_steps=5)
    assert trainer.monitors.latest("vld/loss") != trainer.monitors.latest("whole/loss")
    assert json.loads((experiment / "checkpoints" / "min-whole-loss.json").read_text())["value"] == pytest.approx(
        trainer.monitors.latest("whole/loss")
    )


def test_a_second_value_names_both_callbacks(experiment: Path) -> None:
    class First(Callback):
        def trigger(self) -> None:
            self.trainer.monitors.put_scalar("own/score", 1.0)

    class Second(First):
        pass

    with pytest.raises(CallbackError, match="First and Second both record 'own/score' at step 3"):
        tiny_trainer(experiment).train([First().every(steps=3), Second().every(steps=3)], max_steps=9)


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (
            Validation("val"),
            r"Validation\('val'\): datasets\(\) gives no 'val'; did you mean 'vld'\? it gives trn, vld",
        ),
        (InferenceRunner("val", ScalarStats("loss")), "InferenceRunner: datasets.. gives no 'val'; did you mean 'vld'"),
    ],
)
def test_a_dataset_that_is_not_there(callback: Callback, words: str, experiment: Path) -> None:
    trainer = tiny_trainer(experiment)
    with pytest.raises(DataError, match=words):
        trainer.train([callback], max_steps=1)
    assert trainer.global_step == 0


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
