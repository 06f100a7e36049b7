"""Ways to train a workload, prototrain's and its peers': each makes a function that trains and returns the seconds."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from benchmarks.workloads import Workload, by_name, pair
from prototrain import Callback, Config, SimpleTrainer
from prototrain.callbacks import (
    JSONWriter,
    LearningRate,
    ModelSaver,
    ProgressBar,
    SaveOnExit,
    ScalarPrinter,
    StopOnNaN,
    Summaries,
    TensorBoardWriter,
)

PRINT, SUMMARIES, SAVE = 100, 50, 1000
WARM_UP = 200  # steps before the clock starts: tracing, and learning how many steps fit into a call

Run = Callable[[int], float]  # from a number of steps to the seconds that they took


class Stopwatch(Callback):
    """Times the steps from `WARM_UP` to the end."""

    priority = 1000
    warm_up = WARM_UP

    def next_step(self, step: int) -> int | None:
        return WARM_UP if step < WARM_UP else self.trainer.total_steps

    def trigger_step(self) -> None:
        if self.trainer.global_step == WARM_UP:
            self.begin = time.perf_counter()

    def trigger_epoch(self) -> None:
        self.seconds = time.perf_counter() - self.begin


class EveryStep(Callback):
    """The cheapest callback that runs after every step."""

    def trigger_step(self) -> None:
        pass


def usual_callbacks() -> list[Callback]:
    """The callbacks of `prototrain run`, without validation."""
    return [
        LearningRate(lambda step: 1e-3),
        Summaries().every(steps=SUMMARIES),
        TensorBoardWriter(),
        JSONWriter(),
        ScalarPrinter().every(steps=PRINT),
        ProgressBar(),
        ModelSaver(asynchronous=True).every(steps=SAVE),
        SaveOnExit(),
        StopOnNaN(),
    ]


def trainer_for(workload: Workload, experiment: Path | None = None, make: Callable[..., Any] = SimpleTrainer) -> Any:
    """A prototrain trainer of a workload."""

    def build(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        logits = workload.logits(inputs["x"], train_phase)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=logits)
        return {"logits": logits, "loss": tf.reduce_mean(losses)}

    config = Config(
        {
            "trainer.experiment_name": "benchmark",
            "model.batch_size": workload.batch,
            "model.num_steps": workload.steps,
            "model.optimizer.method": "adam",
            "model.lr_schedule.method": "constant",
            "model.lr_schedule.constant.value": 1e-3,
        }
    )
    model = SimpleNamespace(config=config, datasets=lambda: {"trn": workload.batches(by_name)}, build=build)
    return make(model, experiment=experiment)


def prototrain(make_callbacks: Callable[[], list[Callback]]) -> Callable[[Workload], Run]:
    def make(workload: Workload) -> Run:
        def run(steps: int) -> float:
            with tempfile.TemporaryDirectory() as scratch, _silence():
                trainer = trainer_for(workload, Path(scratch) / "run")
                watch = Stopwatch()
                trainer.train([*make_callbacks(), watch], max_steps=WARM_UP + steps)
                return watch.seconds

        return run

    return make


def keras_fit(
    *, steps_per_execution: int = 1, jit: bool | str = False, callbacks: bool = False
) -> Callable[[Workload], Run]:
    def make(workload: Workload) -> Run:
        model = keras_model(workload)
        model.compile(
            keras.optimizers.Adam(1e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution,
            jit_compile=jit,
        )
        data = workload.batches(pair)

        def run(steps: int) -> float:
            with tempfile.TemporaryDirectory() as scratch, _silence():
                own = [
                    keras.callbacks.TensorBoard(scratch, update_freq=SUMMARIES),
                    keras.callbacks.ModelCheckpoint(f"{scratch}/model.keras", save_freq=SAVE),
                ]
                begin = time.perf_counter()
                model.fit(data, steps_per_epoch=steps, epochs=1, shuffle=False, callbacks=own if callbacks else [])
                return time.perf_counter() - begin

        run(max(steps_per_execution, 10))
        return run

    return make


def hand_written(workload: Workload) -> Run:
    """A compiled step that Python calls for every batch."""
    model, optimizer, iterator = _parts(workload)
    step = tf.function(lambda x, y: update(model, optimizer, x, y), autograph=False)

    def run(steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            step(*next(iterator))
        return time.perf_counter() - begin

    run(WARM_UP)
    return run


def limit(workload: Workload) -> Run:
    """All steps in one graph call, and nothing else."""
    model, optimizer, iterator = _parts(workload)

    @tf.function(autograph=False)
    def call(steps: tf.Tensor) -> tf.Tensor:
        def body(done: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return done + 1, update(model, optimizer, *next(iterator))

        return tf.while_loop(lambda done, _: done < steps, body, (tf.constant(0), tf.constant(0.0)))[1]

    def run(steps: int) -> float:
        begin = time.perf_counter()
        call(tf.constant(steps)).numpy()
        return time.perf_counter() - begin

    run(WARM_UP)
    return run


def subjects() -> dict[str, Callable[[Workload], Run]]:
    """All of them by title."""
    return {
        "limit: all steps in one graph call": limit,
        "prototrain, usual callbacks": prototrain(usual_callbacks),
        "prototrain, usual and a per-step callback": prototrain(lambda: [*usual_callbacks(), EveryStep()]),
        "Keras fit as it comes": keras_fit(jit="auto"),
        "Keras fit, no XLA": keras_fit(),
        **{f"Keras fit, no XLA, {n} steps per execution": keras_fit(steps_per_execution=n) for n in (10, 50, 100)},
        **{
            f"Keras fit, no XLA, {n} steps per execution, callbacks": keras_fit(steps_per_execution=n, callbacks=True)
            for n in (10, 50, 100)
        },
        "tf.function called from Python": hand_written,
    }


def _parts(workload: Workload) -> tuple[Any, Any, Any]:
    model = keras_model(workload)
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    return model, optimizer, iter(workload.batches(pair))


def keras_model(workload: Workload) -> keras.Model:
    inputs = keras.Input(workload.shape, dtype=workload.dtype)
    return keras.Model(inputs, workload.logits(inputs, None))


def update(model: Any, optimizer: Any, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """One step on a batch; returns the loss."""
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


class _silence:
    """Sends what is printed nowhere: a terminal's speed is not measured."""

    def __enter__(self) -> None:
        self._null = open(os.devnull, "w")
        self._out, self._err = os.dup(1), os.dup(2)
        os.dup2(self._null.fileno(), 1)
        os.dup2(self._null.fileno(), 2)

    def __exit__(self, *_: object) -> None:
        os.dup2(self._out, 1)
        os.dup2(self._err, 2)
        os.close(self._out)
        os.close(self._err)
        self._null.close()
