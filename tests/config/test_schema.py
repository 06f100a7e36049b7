from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prototrain.config import Config, ConfigKeyError
from prototrain.config.schema import SCHEMA, UNSET
from prototrain.errors import ConfigError


def keep_all(variable: object) -> bool:
    return True


class Maker:
    @staticmethod
    def keep(variable: object) -> bool:
        return False


# Keys of every type and with every kind of bound: the default, a good value, and one that is wrong.
KEYS: list[tuple[str, Any, Any, Any]] = [
    ("trainer.experiment_name", UNSET, "a-{timestamp}", "a/b"),
    ("trainer.validation_step_interval", 100, "1 epoch", "0 epochs"),
    ("trainer.progress_scalars", ["loss"], ["loss", "vld/*"], "loss"),
    ("trainer.checkpoint_save_interval", 1000, "auto", "7"),
    ("model.jit_compile", False, "loop", 1),
    ("model.trainable_variables.filter_fn", None, keep_all, 3),
    ("model.trainable_variables.filter_regex", None, "fc.*", "("),
    ("model.optimizer.method", UNSET, "adam", "adm"),
    ("model.optimizer.adam.beta1", 0.9, 0.5, 1.0),
    ("model.lr_schedule.step.values", UNSET, [0.1, 0.2, 0.3], [0.1, "a"]),
    ("model.lr_schedule.constant.value", UNSET, 0.0, 10**400),
]


@pytest.mark.parametrize(("key", "default", "good", "wrong"), KEYS)
def test_each_kind_of_key(key: str, default: Any, good: Any, wrong: Any) -> None:
    config = Config()
    if default is UNSET:
        with pytest.raises(ConfigKeyError, match="is not set; expected"):
            config[key]
    else:
        assert config[key] == default
        assert type(config[key]) is type(default)
    assert config.get(key, "other") == ("other" if default is UNSET else default)
    config[key] = good
    assert config[key] == good
    with pytest.raises(ConfigError, match=key) as caught:
        config[key] = wrong
    assert "\n" not in str(caught.value)
    assert config[key] == good


def test_defaults_are_valid() -> None:
    for key, spec in SCHEMA.items():
        if spec.default is not UNSET:
            assert Config({key: spec.default})[key] == spec.default, key


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("trainer.print_interval", 0, '^trainer.print_interval: expected int >= 1 or "N epochs", got 0$'),
        ("model.optimizer.adam.beta1", 1, "^model.optimizer.adam.beta1: expected float >= 0 and < 1, got 1$"),
        ("trainer.experiment_name", "", "leave the base directory"),
        ("trainer.experiment_name", "..", "leave the base directory"),
        ("trainer.experiment_name", "/a", "leave the base directory"),
    ],
)
def test_messages(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config({key: value})


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("model.weight_decay.value", 1, 1.0),
        ("model.batch_size", np.int64(4), 4),
        ("model.lr_schedule.step.boundaries", (1, 2), [1, 2]),
        ("model.lr_schedule.step.values", (1, 0.5), [1.0, 0.5]),
        ("model.trainable_variables.filter_fn", f"{__name__}:Maker.keep", Maker.keep),
    ],
)
def test_conversions(key: str, value: Any, stored: Any) -> None:
    result = Config({key: value})[key]
    assert result == stored
    assert type(result) is type(stored)
    if isinstance(stored, list):
        assert [type(x) for x in result] == [type(x) for x in stored]
