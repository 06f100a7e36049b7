"""What layers are compared by."""

from __future__ import annotations

from typing import Any

import keras

from prototrain.model.layer_settings import layer_settings


def layers(rate: float = 0.5) -> list[Any]:
    """Some with names and some without, which Keras gives other ones each time."""
    made = [keras.layers.Dense(2, name="first"), keras.layers.ReLU(), keras.layers.ReLU(), keras.layers.Dropout(rate)]
    return [keras.Sequential([keras.Input((3,)), *made])]


def test_names_that_count_up_by_process_are_no_difference() -> None:
    before = layer_settings(layers())
    assert list(before) == ["input_layer", "first", "re_lu", "re_lu (2)", "dropout"]
    assert layer_settings(layers()) == before
    after = layer_settings(layers(0.9))
    assert [name for name in before if before[name] != after[name]] == ["dropout"]
