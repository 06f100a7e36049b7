"""Monitors receive and remember every scalar once; comparison of values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import Callback
from prototrain.callbacks import Best, InferenceRunner, MinSaver, Monitor, ScalarStats, Summaries, Validation
from prototrain.callbacks.monitor import HISTORY_LENGTH
from prototrain.errors import CallbackError
from tests.callbacks.helpers import measures
from tests.tiny import CountingTrainer, tiny_trainer


class Collects(Monitor):
    def __init__(self) -> None:
        self.got: list[tuple[Any, ...]] = []
        self.flushed = 0

    def put_scalar(self, name: str, value: float, step: int) -> None:
        self.got.append((name, value, step))

    def flush(self) -> None:
        self.flushed += 1

    def trigger(self) -> None:
        pass


class Together(Collects):
    def put_scalars(self, values: Mapping[str, float], step: int) -> None:
        self.got.append((values, step))


def test_every_monitor_receives_every_scalar() -> None:
    plain, proxied = Collects(), Collects()
    CountingTrainer().train([plain, proxied.every(steps=100), Summaries().every(steps=1)], max_steps=2)
    assert plain.got == proxied.got == [("trn/loss", 1.0, 1), ("trn/loss", 0.5, 2)]
    assert plain.flushed >= 2


def test_put_scalars_is_all_or_nothing() -> None:
    trainer, together, single = CountingTrainer(), Together(), Collects()
    trainer.monitors.attach([together, single])
    with pytest.raises(CallbackError, match="scalar 'vld/b' must be a single number"):
        trainer.monitors.put_scalars({"a": 1, "b": "much"}, "vld")
    trainer.monitors.put_scalars({"a": 1, "b": np.float32(2)}, "vld")
    trainer.monitors.put_scalar("c", 3)
    assert together.got == [({"vld/a": 1.0, "vld/b": 2.0}, 0), ({"c": 3.0}, 0)]
    assert single.got == [("vld/a", 1.0, 0), ("vld/b", 2.0, 0), ("c", 3.0, 0)]
    assert trainer.monitors.history("vld/a") == [(0, 1.0)]


def test_values() -> None:
    for value in (1, 1.0, np.float32(1), np.array(1.0), tf.constant(1.0), tf.Variable(1), True):
        monitors = CountingTrainer().monitors
        monitors.put_scalar("x", value)
        assert monitors.history("x") == [(0, 1.0)]
    for wrong in (None, "much", [1, 2], np.zeros(3), tf.zeros([2])):
        with pytest.raises(CallbackError, match="scalar 'x' must be a single number"):
            monitors.put_scalar("x", wrong)


@pytest.mark.parametrize("name", ["a\0b", "../x", "step", None])
def test_invalid_names(name: Any) -> None:
    with pytest.raises(CallbackError, match=r"a scalar (cannot be called|must be a printable text)"):
        CountingTrainer().monitors.put_scalar(name, 1.0)


def test_two_values_and_unknown_names_are_errors(experiment: Path) -> None:
    stats = InferenceRunner("vld", [ScalarStats("loss"), ScalarStats("loss")])
    two = [measures("vld/lossy", float), measures("vld/lossy", float)]
    callbacks: list[tuple[list[Callback], str]] = [
        ([Validation(), MinSaver("vld/lossy")], "no scalar 'vld/lossy'; did you mean 'vld/loss'"),
        ([Validation(), Validation(batches=1)], "Validation and Validation 2: 'vld/loss' already has a value"),
        (two, "CallbackFactory and CallbackFactory 2: 'vld/lossy' already has a value"),
        ([stats], "InferenceRunner: 'vld/loss' already has a value at step 1"),
    ]
    for given, words in callbacks:
        with pytest.raises(CallbackError, match=words):
            tiny_trainer(experiment).train([callback.every(steps=1) for callback in given], max_steps=1, fresh=True)


def test_history_and_latest() -> None:
    trainer = CountingTrainer()
    trainer.train([Summaries().every(steps=1)], max_steps=3)
    monitors = trainer.monitors
    assert monitors.names() == ["trn/loss"]
    assert monitors.history("trn/loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert monitors.history("nothing") == []
    assert monitors.latest("trn/loss") == monitors.latest("trn/loss", at_step=3) == 1 / 3
    with pytest.raises(CallbackError, match="is from step 3; record one at step 4"):
        monitors.latest("trn/loss", at_step=4)
    with pytest.raises(CallbackError, match="no scalar 'loss'; did you mean 'trn/loss'"):
        monitors.latest("loss")
    for value in range(HISTORY_LENGTH + 5):
        monitors.put_scalar("vld/loss", value)
    monitors.load_state_dict(monitors.state_dict())
    assert len(monitors.history("vld/loss")) == HISTORY_LENGTH and monitors.latest("vld/loss") == HISTORY_LENGTH + 4
    assert monitors.best() == {"vld/loss": (3, 0.0)}


@pytest.mark.parametrize(
    ("mode", "min_delta", "values", "better"),
    [
        ("min", 0.0, [3.0, 2.0, 2.0, 2.5, 1.0], [True, True, False, False, True]),
        ("max", 0.0, [3.0, 2.0, 4.0, 4.0], [True, False, True, False]),
        ("min", 0.5, [3.0, 2.6, 2.4], [True, False, True]),
        ("max", 0.5, [1.0, 1.5, 1.6], [True, False, True]),
        ("min", 0.0, [math.nan, math.inf, 1.0, math.nan, -math.inf], [False, True, True, False, True]),
    ],
)
def test_best_value(mode: str, min_delta: float, values: list[float], better: list[bool]) -> None:
    best, other = Best(mode, min_delta=min_delta), Best(mode)  # type: ignore[arg-type]
    assert [best.update(value, step) for step, value in enumerate(values)] == better
    other.load_state_dict(best.state_dict())
    assert (other.value, other.step) == (best.value, best.step)
