from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.model.layer_cache import LayerCache
from prototrain.model.placement import Placement

Build = Callable[[dict[str, tf.Tensor], bool], Any]
BATCH = {"x": tf.constant(np.random.default_rng(1).normal(size=(6, 4)), tf.float32)}
SPEC = {"x": tf.TensorSpec([None, 4], tf.float32)}


def fresh(build: Build) -> LayerCache:
    """A store after the calls that a trainer makes before training."""
    keras.utils.clear_session(free_memory=False)
    store = LayerCache()
    with store.creating(tf.distribute.get_strategy(), Placement().make_variable):
        build(BATCH, True)
    store.add_used(lambda inputs: build(inputs, True), SPEC)
    return store


def used_again(store: LayerCache, build: Build, train_phase: bool) -> set[int]:
    """The ids of the variables that a later call inside a loop uses."""

    def body(count: tf.Tensor) -> tf.Tensor:
        with store.sharing():
            build(BATCH, train_phase)
        return count + 1

    call = tf.function(lambda: tf.while_loop(lambda count: count < 2, body, [0]), autograph=False)
    return {id(variable) for variable in call.get_concrete_function().graph.variables}


def inline(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
    x = keras.layers.Dense(4, name="fc0")(inputs["x"])
    x = keras.layers.BatchNormalization(name="bn0")(x, training=train_phase)
    return keras.layers.Dense(4, name="fc1")(x)


def unnamed(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
    x = inputs["x"]
    for _ in range(3):
        x = keras.layers.Dropout(0.5)(keras.layers.Dense(4)(x), training=train_phase)
    return x


def nested(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
    given = keras.Input((4,))
    inner = keras.Model(given, keras.layers.Dense(4, name="q")(given), name="inner")
    outer = keras.Sequential([inner, keras.layers.Dense(3), keras.layers.Dense(3)], name="outer")
    return outer(inputs["x"], training=train_phase)


def functional(name: str) -> keras.Model:
    given = keras.Input((4,))
    return keras.Model(given, keras.layers.Dense(4, name="fc")(given), name=name)


def of_models(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
    x = functional("a")(inputs["x"]) + functional("b")(inputs["x"])
    given = keras.Input((4,))
    outer = keras.Model(given, keras.layers.Dense(4, name="out")(functional("inner")(given)), name="outer")
    return keras.layers.Dense(2, name="fc")(outer(x))


def models_with_a_shared_layer(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
    given = keras.Input((4,))
    code = keras.layers.Dense(2, name="e")(given)
    encoder = keras.Model(given, code, name="encoder")
    whole = keras.Model(given, keras.layers.Dense(4, name="d")(code), name="whole")
    return whole(inputs["x"]) + tf.reduce_sum(encoder(inputs["x"]))


def by_hand(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
    scale = tf.Variable(tf.ones([4]), name="scale")
    with tf.name_scope("inside"):
        shift = tf.Variable(lambda: tf.zeros([4]), name="shift")
    return inputs["x"] * scale + shift + tf.Variable(1.0)


def in_control_flow(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
    chosen = tf.cond(tf.constant(True), lambda: keras.layers.Dense(4, name="yes")(inputs["x"]), lambda: inputs["x"])

    def body(value: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return value * 2.0, count + 1

    return tf.while_loop(lambda value, count: count < 2, body, [chosen, 0])


def auxiliary_head(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
    x = keras.layers.Dense(4, name="head_1")(inputs["x"]) if train_phase else inputs["x"]
    return keras.layers.Dense(4, name="head_2")(x)


def dropout_in_training(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
    x = keras.layers.Dropout(0.5)(inputs["x"], training=True) if train_phase else inputs["x"]
    return keras.layers.Dropout(0.5)(keras.layers.Dense(3)(x), training=train_phase)


def target_in_training(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
    if train_phase:
        with tf.name_scope("target"):
            keras.layers.Dense(4, name="q")(inputs["x"])
    return keras.layers.Dense(4, name="q")(inputs["x"])


def with_optimizer(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
    keras.optimizers.SGD(0.1, name="sgd")
    return keras.layers.Dense(4)(inputs["x"])


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (inline, "fc0/kernel fc0/bias bn0/gamma bn0/beta bn0/moving_mean bn0/moving_variance fc1/kernel fc1/bias"),
        (
            nested,
            "inner/q/kernel inner/q/bias outer/dense/kernel outer/dense/bias outer/dense_1/kernel outer/dense_1/bias",
        ),
        (
            of_models,
            "a/fc/kernel a/fc/bias b/fc/kernel b/fc/bias outer/inner/fc/kernel outer/inner/fc/bias "
            "outer/out/kernel outer/out/bias fc/kernel fc/bias",
        ),
        (models_with_a_shared_layer, "encoder/e/kernel encoder/e/bias whole/d/kernel whole/d/bias"),
        (by_hand, "scale inside/shift Variable"),
        (in_control_flow, "yes/kernel yes/bias"),
        (auxiliary_head, "head_1/kernel head_1/bias head_2/kernel head_2/bias"),
        (target_in_training, "target/q/kernel target/q/bias q/kernel q/bias"),
        (unnamed, None),
        (dropout_in_training, None),
        (with_optimizer, "sgd/iteration sgd/learning_rate dense/kernel dense/bias"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_calls_share_variables(build: Build, names: str | None) -> None:
    store = fresh(build)
    if names is not None:
        assert list(store.variables) == names.split()
    mine = {id(variable) for variable in store.variables.values()}
    trained = {id(variable) for variable in store.variables.values() if variable.trainable}
    assert trained <= used_again(store, build, True) <= mine
    assert used_again(store, build, False) <= mine
    # Another trainer in the same process, which resets Keras's counters, gets the same names.
    assert list(fresh(build).variables) == list(store.variables)
    assert trained <= used_again(store, build, True) <= mine


def eager_only(shape: int, name: str) -> Build:
    def build(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
        first = tf.executing_eagerly()
        return keras.layers.Dense(4 if first else shape, name="a" if first else name)(inputs["x"])

    return build


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (eager_only(5, "a"), r"asked for a/kernel, .* did not make"),
        (eager_only(4, "b"), r"asked for b/kernel, .* did not make"),
        (lambda inputs, _: None if tf.executing_eagerly() else tf.Variable(1.0, name="new"), "asked for new"),
        (lambda inputs, _: keras.metrics.Mean(name="mine")(inputs["x"]), "updates the Keras metric mine"),
    ],
)
def test_calls_that_cannot_be_repeated_are_an_error(build: Build, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        fresh(build)


def test_initial_arrays_may_differ_between_calls() -> None:
    drawn: list[float] = []

    def build(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
        drawn.append(np.random.normal())
        return keras.Variable(np.full(4, drawn[-1], "float32"), name="scale").value * inputs["x"]

    store = fresh(build)
    assert used_again(store, build, False) == {id(store.variables["scale"])}
    np.testing.assert_allclose(store.variables["scale"], drawn[0], rtol=1e-6)
    assert len(set(drawn)) > 1


def one_layer_left_out(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
    x = keras.layers.Dense(4)(inputs["x"]) if train_phase else inputs["x"]
    return keras.layers.Dense(4)(x)


def one_variable_left_out(inputs: dict[str, tf.Tensor], train_phase: bool) -> Any:
    if train_phase:
        tf.Variable(1.0, name="scale")
    return inputs["x"] * tf.Variable(2.0, name="scale")


@pytest.mark.parametrize(("build", "name"), [(one_layer_left_out, "dense_1/kernel"), (one_variable_left_out, "scale")])
def test_omitted_layers_must_be_named(build: Build, name: str) -> None:
    with pytest.raises(ModelError, match=f"left out {name}, which has no unique name"):
        used_again(fresh(build), build, False)


def test_later_calls_keep_random_generators() -> None:
    store = fresh(unnamed)
    before = random.getstate(), np.random.get_state()[1].tolist()
    used_again(store, unnamed, True)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
