"""A name of a scalar that does not come, or comes twice, is an error that names the callback."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prototrain import Callback
from prototrain.callbacks import (
    CallbackFactory,
    EarlyStopping,
    InferenceRunner,
    MaxSaver,
    MinSaver,
    ScalarStats,
    StatMonitorParamSetter,
    Summaries,
    Validation,
)
from prototrain.errors import CallbackError, DataError
from tests.tiny import tiny_datasets, tiny_trainer


def stops(stat: str) -> Callback:
    return EarlyStopping(stat, mode="min", patience=2)


def halves(stat: str) -> Callback:
    return StatMonitorParamSetter("learning_rate", stat, float, mode="min", last_k=2)


def stats(**options: Any) -> Callback:
    return InferenceRunner("vld", ScalarStats("loss"), **options)


WRONG: dict[str, tuple[Callable[[], list[Callback]], type[Exception], str]] = {
    "no dataset": (
        lambda: [Validation("val")],
        DataError,
        "Validation('val'): datasets() gives no 'val'; did you mean 'vld'? it gives trn, vld",
    ),
    "no dataset to infer": (
        lambda: [InferenceRunner("val", ScalarStats("loss"))],
        DataError,
        "InferenceRunner: datasets() gives no 'val'; did you mean 'vld'?",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_will_not_come_is_an_error_before_the_first_step(case: str, experiment: Path) -> None:
    make, error, words = WRONG[case]
    trainer = tiny_trainer(experiment, datasets=lambda: {**tiny_datasets(), "tst": tiny_datasets()["vld"]})
    with pytest.raises(error, match=re.escape(words)):
        trainer.train(make(), max_steps=20)
    assert trainer.global_step == 0


@pytest.mark.parametrize(
    ("callbacks", "words", "step"),
    [
        (lambda: [Summaries(), stops("trn/lossy")], "no scalar 'trn/lossy'; did you mean 'trn/loss'", 5),
        (lambda: [Validation(), MinSaver("vld/lossy")], "there is no scalar 'vld/lossy'; did you mean 'vld/loss'", 5),
        (lambda: [Summaries(), halves("loss")], "there is no scalar 'loss'; did you mean 'trn/loss'", 5),
        (lambda: [MaxSaver("vld/loss")], "there is no scalar 'vld/loss'; there are: none yet", 5),
        (lambda: [Validation(), stats()], "Validation and InferenceRunner both record 'vld/loss' at step 5", 5),
        (lambda: [Summaries().every(steps=3), Summaries().every(steps=2)], "two callbacks .*'Summaries/trn'", 0),
        (
            lambda: [InferenceRunner("vld", [ScalarStats("loss"), ScalarStats("loss")])],
            "two of its inferencers",
            5,
        ),
        (
            lambda: [CallbackFactory(trigger=measure), CallbackFactory(trigger=measure)],
            "CallbackFactory and CallbackFactory 2 both record 'vld/lossy' at step 5",
            5,
        ),
    ],
)
def test_what_only_the_step_shows_is_an_error_there(
    callbacks: Callable[[], list[Callback]], words: str, step: int, experiment: Path
) -> None:
    trainer = tiny_trainer(experiment)
    with pytest.raises(CallbackError, match=words):
        trainer.train(callbacks(), max_steps=10)
    assert trainer.global_step == step


def measure(callback: Callback) -> None:
    callback.trainer.monitors.put_scalar("vld/lossy", 1.0)
