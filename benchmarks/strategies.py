"""What prototrain is compared with on several towers or workers: Keras `fit` and a hand-written loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from benchmarks.subjects import keras_model
from benchmarks.workloads import Workload, pair
from prototrain.private_api.of_keras import expect_averages

Run = Callable[[int], object]  # trains so many steps


def fit_under(strategy: tf.distribute.Strategy, workload: Workload, *, steps_per_execution: int = 1) -> Run:
    """Keras `fit`; the number of steps must be a multiple of `steps_per_execution`."""
    with strategy.scope():
        model = keras_model(workload)
        model.compile(
            keras.optimizers.Adam(1e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution,
            jit_compile=False,
        )
    data = workload.batches(pair)
    return lambda steps: model.fit(data, steps_per_epoch=steps, epochs=1, shuffle=False, verbose=0)


def loop_under(strategy: tf.distribute.Strategy, workload: Workload, *, reduces: bool = True) -> Run:
    """All steps in one graph call, with `strategy.run` in each and the mean of the towers' losses in the end.

    Args:
        strategy: places the towers.
        workload: the global batch is its batch.
        reduces: whether gradients are averaged over the towers; without that every tower trains for itself.
    """
    with strategy.scope():
        model = keras_model(workload)
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
    if not reduces:
        expect_averages(optimizer)
    iterator = iter(strategy.experimental_distribute_dataset(workload.batches(pair)))

    def tower(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x, training=True))
            loss = tf.reduce_sum(losses) / workload.batch
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @tf.function(autograph=False)
    def call(steps: tf.Tensor) -> tf.Tensor:
        def body(done: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            losses: Any = strategy.run(tower, args=next(iterator))
            return done + 1, strategy.reduce("SUM", losses, axis=None) if reduces else tf.constant(0.0)

        return tf.while_loop(lambda done, _: done < steps, body, (tf.constant(0), tf.constant(0.0)))[1]

    return lambda steps: call(tf.constant(steps)).numpy()
