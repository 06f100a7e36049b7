"""prototrain, a single graph call, Keras `fit` and Orbit on the same layers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from benchmarks.peers.turns import LOG, SAVE, Batches, Turns
from benchmarks.workloads import WORKLOADS, Workload, by_name, pair
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


@dataclass(frozen=True)
class InMemory(Workload):
    """A workload with its batches in memory."""

    arrays: Batches

    def batches(self, structure: Callable[[Any, Any], Any]) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(structure(*self.arrays)).repeat().prefetch(tf.data.AUTOTUNE)


def in_memory(name: str, batches: Batches) -> InMemory:
    """Return the workload on the given batches."""
    return InMemory(**vars(WORKLOADS[name]), arrays=batches)


def usual_callbacks() -> list[Callback]:
    """Return the callbacks of `prototrain run` without validation."""
    return [
        LearningRate(lambda step: 1e-3),
        Summaries().every(steps=LOG),
        TensorBoardWriter(),
        JSONWriter(),
        ScalarPrinter().every(steps=100),
        ProgressBar(),
        ModelSaver(asynchronous=True).every(steps=SAVE),
        SaveOnExit(),
        StopOnNaN(),
    ]


def trainer_for(workload: Workload, experiment: Path, form: bool | str) -> SimpleTrainer:
    """Return a prototrain trainer for a workload."""

    def build(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        logits = workload.logits(inputs["x"], train_phase)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=logits)
        return {"logits": logits, "loss": tf.reduce_mean(losses)}

    config = Config(
        {
            "trainer.experiment_name": "benchmark",
            "model.batch_size": workload.batch,
            "model.num_steps": workload.steps,
            "model.jit_compile": form,
            "model.optimizer.method": "adam",
            "model.lr_schedule.method": "constant",
            "model.lr_schedule.constant.value": 1e-3,
        }
    )
    model = SimpleNamespace(config=config, datasets=lambda: {"trn": workload.batches(by_name)}, build=build)
    return SimpleTrainer(model, experiment=experiment)


class EveryStep(Callback):
    """The cheapest callback that runs after every step."""

    def trigger_step(self) -> None:
        pass


def prototrain(
    name: str,
    batches: Batches,
    turns: Turns,
    *,
    usual: bool = True,
    form: bool | str = False,
    each_step: bool = False,
) -> None:
    """Train with the callbacks of `prototrain run`, or with only the loss in metrics.jsonl."""

    class InTurns(Callback):
        priority = 1000

        def next_step(self, step: int) -> int:
            return turns.end

        def trigger_step(self) -> None:
            parameters = sum(variable.shape.num_elements() for variable in self.trainer.trainable.values())  # type: ignore[attr-defined]
            turns.over(float(self.trainer.outputs["loss"]), parameters)

    turns.begin()
    callbacks = usual_callbacks() if usual else [Summaries().every(steps=LOG), JSONWriter()]
    callbacks += [EveryStep()] if each_step else []
    with tempfile.TemporaryDirectory() as scratch:
        trainer = trainer_for(in_memory(name, batches), Path(scratch) / "run", form)
        trainer.train([*callbacks, InTurns()], max_steps=turns.total)


def one_call(name: str, batches: Batches, turns: Turns) -> None:
    """Run all steps of a turn in one graph call and nothing else: the limit."""
    turns.begin()
    workload = in_memory(name, batches)
    model, optimizer = keras_model(workload), keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    iterator = iter(workload.batches(pair))

    @tf.function(autograph=False)
    def call(steps: tf.Tensor) -> tf.Tensor:
        def body(done: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return done + 1, update(model, optimizer, *next(iterator))

        return tf.while_loop(lambda done, _: done < steps, body, (tf.constant(0), tf.constant(0.0)))[1]

    while turns.end <= turns.total:
        turns.over(float(call(tf.constant(turns.steps))), _count(model))


def keras_fit(name: str, batches: Batches, turns: Turns, *, at_once: int = 1, jit: bool | str = "auto") -> None:
    """Train with the progress bar, TensorBoard and ModelCheckpoint."""

    class InTurns(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch + 1 >= turns.end:
                turns.over(logs["loss"], _count(self.model))

    turns.begin()
    workload = in_memory(name, batches)
    model = keras_model(workload)
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=min(at_once, turns.steps),
        jit_compile=jit,
    )
    with tempfile.TemporaryDirectory() as scratch:
        callbacks = [
            keras.callbacks.TensorBoard(scratch, update_freq=LOG),
            keras.callbacks.ModelCheckpoint(f"{scratch}/model.keras", save_freq=SAVE),
            InTurns(),
        ]
        model.fit(workload.batches(pair), steps_per_epoch=turns.total, shuffle=False, callbacks=callbacks)


def orbit_loop(name: str, batches: Batches, turns: Turns) -> None:
    """Train with Orbit's controller, which writes summaries and checkpoints, and its `StandardTrainer`."""
    import orbit

    turns.begin()
    workload = in_memory(name, batches)

    class Trainer(orbit.StandardTrainer):  # type: ignore[misc]
        def __init__(self) -> None:
            self.model, self.optimizer = keras_model(workload), keras.optimizers.Adam(1e-3)
            self.optimizer.build(self.model.trainable_variables)
            self.global_step = tf.Variable(0, trainable=False, dtype=tf.int64)
            self.loss = tf.Variable(0.0, trainable=False)
            super().__init__(workload.batches(pair))

        def train_step(self, iterator: Any) -> None:
            self.loss.assign(update(self.model, self.optimizer, *next(iterator)))
            self.global_step.assign_add(1)

        def train_loop_end(self) -> dict[str, Any]:
            return {"loss": self.loss.read_value()}

    trainer = Trainer()
    at_once = min(LOG, turns.steps)
    with tempfile.TemporaryDirectory() as scratch:
        saved = tf.train.Checkpoint(step=trainer.global_step, model=trainer.model)
        controller = orbit.Controller(
            trainer=trainer,
            global_step=trainer.global_step,
            steps_per_loop=at_once,
            summary_dir=f"{scratch}/summaries",
            summary_interval=at_once,
            checkpoint_manager=tf.train.CheckpointManager(
                saved, scratch, 5, step_counter=trainer.global_step, checkpoint_interval=SAVE
            ),
        )
        while turns.end <= turns.total:
            controller.train(steps=turns.end)
            turns.over(float(trainer.loss), _count(trainer.model))


def keras_model(workload: Workload) -> keras.Model:
    inputs = keras.Input(workload.shape, dtype=workload.dtype)
    return keras.Model(inputs, workload.logits(inputs, None))


def update(model: Any, optimizer: Any, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Run one step on a batch and return the loss."""
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


def _count(model: Any) -> int:
    return sum(variable.shape.num_elements() for variable in model.trainable_variables)
