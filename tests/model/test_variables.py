"""Selection of a model's variables by filters."""

from __future__ import annotations

from typing import Any

import pytest

from prototrain import Config
from prototrain.errors import ConfigError
from prototrain.model.variables import select
from tests.checkpoint.test_weights import NET, variables
from tests.tiny import tiny_trainer


@pytest.mark.parametrize(
    ("filters", "chosen"),
    [
        ({}, ["fc0/kernel", "fc0/bias", "logits/kernel"]),
        ({"filter_regex": "fc0"}, ["fc0/kernel", "fc0/bias"]),
        ({"filter_regex": ".*kernel"}, ["fc0/kernel", "logits/kernel"]),
        ({"filter_regex": "kernel|logits"}, ["logits/kernel"]),  # from the start of the name, as re.match
        ({"filter_fn": lambda variable: len(variable.shape) == 1}, ["fc0/bias"]),
        ({"filter_fn": lambda variable: len(variable.shape) == 2, "filter_regex": "fc0"}, ["fc0/kernel"]),
    ],
)
def test_select(filters: dict[str, Any], chosen: list[str]) -> None:
    config = Config({f"model.trainable_variables.{name}": value for name, value in filters.items()})
    assert list(select(variables(**NET), config, "model.trainable_variables")) == chosen


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (
            {"filter_regex": "conv"},
            "^model.weight_decay.filter_regex: 'conv' accepts none of the variables fc0/kernel,",
        ),
        ({"filter_fn": lambda variable: False}, "^model.weight_decay.filter_fn: accepts none"),
        ({"filter_fn": lambda v: False, "filter_regex": "f"}, "filter_fn and model.weight_decay.filter_regex: accepts"),
    ],
)
def test_filter_without_matches_is_an_error(filters: dict[str, Any], message: str) -> None:
    config = Config({f"model.weight_decay.{name}": value for name, value in filters.items()})
    with pytest.raises(ConfigError, match=message):
        select(variables(**NET), config, "model.weight_decay")


def test_only_trained_variables_decay() -> None:
    trainer = tiny_trainer(
        model__trainable_variables__filter_regex="fc0|logits",
        model__weight_decay__value=0.1,
        model__weight_decay__filter_regex=".*(kernel|gamma)",
    )
    assert list(trainer.trainable) == ["fc0/kernel", "fc0/bias", "logits/kernel", "logits/bias"]
    assert list(trainer.decayed) == ["fc0/kernel", "logits/kernel"]
