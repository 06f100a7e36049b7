"""A program for an `Estimator`, in the style of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain import estimator
from prototrain.estimator import EstimatorSpec, ModeKeys

POINTS = np.random.default_rng(0).normal(size=(70, 2)).astype(np.float32)
SIDES = (POINTS[:, 0] > POINTS[:, 1]).astype(np.int32)


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
    """A classifier of points in the plane."""
    net = tf.stack([features["a"], features["b"]], axis=1)
    for units in params["hidden_units"]:
        net = keras.layers.Dense(units, activation=tf.nn.relu)(net)
        net = keras.layers.BatchNormalization()(net, training=mode == ModeKeys.TRAIN)
        net = keras.layers.Dropout(0.1)(net, training=mode == ModeKeys.TRAIN)
    logits = keras.layers.Dense(2, name="logits")(net)
    classes = tf.argmax(logits, 1)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"class": classes, "logits": logits})
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    accuracy = keras.metrics.Accuracy()
    accuracy.update_state(labels, classes)
    tf.summary.scalar("accuracy", accuracy.result())
    optimizer = keras.optimizers.Adagrad(0.1)  # even where it is not used
    if mode == ModeKeys.EVAL:
        mean = tf.reduce_mean(tf.cast(labels, tf.float32))
        return EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy, "mean": mean})
    return EstimatorSpec(mode, loss=loss, train_op=optimizer)


def linear_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
    """Linear regression without random ops; the features are one tensor."""
    found = keras.layers.Dense(1, kernel_initializer="ones", name="line")(features)[:, 0]
    loss = None if labels is None else tf.reduce_mean((found - tf.cast(labels, tf.float32)) ** 2)
    return EstimatorSpec(mode, predictions=found, loss=loss, train_op=keras.optimizers.SGD(0.1))


def named(batch: int = 10) -> tf.data.Dataset:
    """Features by name, with labels; the last batch may be short."""
    data = tf.data.Dataset.from_tensor_slices(({"a": POINTS[:, 0], "b": POINTS[:, 1]}, SIDES))
    return data.batch(batch)


def endless() -> tf.data.Dataset:
    """Like `named`, but shuffled and endless."""
    return named(1).unbatch().shuffle(70).repeat().batch(10)


def plain(batch: int = 10) -> tf.data.Dataset:
    """Features as one tensor, with labels."""
    return tf.data.Dataset.from_tensor_slices((POINTS, SIDES)).batch(batch)


def classifier(directory: Any, **more: Any) -> estimator.Estimator:
    """A small one that saves every 20 steps."""
    config = estimator.RunConfig(save_summary_steps=10, save_checkpoints_steps=20, log_step_count_steps=20)
    return estimator.Estimator(model_fn, directory, params={"hidden_units": [4]}, **{"config": config, **more})
