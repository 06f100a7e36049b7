"""The digest of a traced model: another one for whatever else it computes, the same in another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.model.graph_digest import model_digest, outputs_of

one, other = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])
NAMES = {id(one.handle): "one", id(other.handle): "other"}


def splits(turned: bool) -> Any:
    def compute(x: Any) -> Any:
        left, right = tf.split(x, 2)
        return right - 2 * left if turned else left - 2 * right

    return compute


def errors(squared: bool) -> Any:
    def compute(x: Any) -> Any:
        net = {"mean": tf.reduce_mean(tf.abs(x)), "square": tf.reduce_mean(x * x)}
        return outputs_of({"loss": net["square" if squared else "mean"]})

    return compute


def weights(turned: bool) -> Any:
    first, second = (other, one) if turned else (one, other)
    return lambda x: x * first + second


def constants(value: float) -> Any:
    held = tf.constant(np.full([200], value, np.float32))
    return lambda x: x[0] * held


def words(last: str) -> Any:
    held = tf.constant(["a", last] * 100)
    return lambda x: tf.strings.length(held)


CHANGES: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "which output of an op": (splits, False, True),
    "what is returned": (errors, False, True),
    "which variable": (weights, False, True),
    "a constant": (constants, 1.0, 2.0),
    "a text": (words, "b", "c"),
}


def digest(function: Callable[[Any], Any]) -> str:
    return model_digest(tf.function(function).get_concrete_function(tf.TensorSpec([2])).graph, NAMES)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str) -> None:
    make, before, after = CHANGES[name]
    assert digest(make(before)) == digest(make(before)) != digest(make(after))


def test_the_order_in_which_parts_are_made_does_not_count() -> None:
    def made(names: tuple[str, ...]) -> Callable[[Any], Any]:
        held = {"one": one, "other": other}

        def compute(x: Any) -> Any:
            parts = {name: x * held[name] for name in names}
            return parts["one"] - parts["other"]

        return compute

    assert digest(made(("one", "other"))) == digest(made(("other", "one")))
