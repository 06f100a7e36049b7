"""Settings of the optimization in a resumed run."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import KerasTrainer, SimpleTrainer
from prototrain.callbacks import ScheduledHyperParamSetter
from prototrain.errors import ConfigError
from prototrain.trainers.optimization import equal_optimizer, optimizer_settings
from tests.tiny import tiny_model


class Rate(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """An optimizer without `get_config`."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> Any:
        return self.rate


def test_schedule_without_get_config() -> None:
    optimizer = keras.optimizers.SGD(Rate(0.25), momentum=0.5)
    assert optimizer_settings(optimizer)["momentum"] == 0.5
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(optimizer, "mse")
    data = tf.data.Dataset.from_tensors((np.ones((1, 1)), np.zeros((1, 1))))
    KerasTrainer(model, data).train(max_steps=1)
    assert float(model.layers[0].kernel[0, 0]) == 0.5
    with pytest.raises(ConfigError, match=r"SGD cannot be made a second time: .*get_config"):
        equal_optimizer(optimizer)


def test_warning_for_an_unused_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    steps = {"model__lr_schedule__method": "step", "model__lr_schedule__step__boundaries": [1]}
    values = {"model__lr_schedule__step__values": [0.1, 0.01]}
    own = {"model__optimizer__method": lambda: keras.optimizers.SGD(0.1)}
    setter = ScheduledHyperParamSetter("learning_rate", [(1, 0.1)])
    constant: dict[str, Any] = {}  # no required keys
    for change, callbacks, is_said in (
        ({**steps, **values}, [], True),
        ({**steps, **values, **own}, [], True),
        ({**steps, **values}, [setter], False),
        (constant, [], False),
    ):
        SimpleTrainer(tiny_model(**change)).train(callbacks, max_steps=2)
        said = "model.lr_schedule (step) is not followed: the learning rate stays at 0.1"
        assert (said in capsys.readouterr().out) is is_said


def test_changed_weight_decay_exclusions_are_reported() -> None:
    one, other = keras.optimizers.AdamW(0.1), keras.optimizers.AdamW(0.1)
    other.exclude_from_weight_decay(var_names=["kernel", "bias"])
    assert optimizer_settings(other) == optimizer_settings(one) | {"without weight decay": ["bias", "kernel"]}
