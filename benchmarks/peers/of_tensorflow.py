"""prototrain and Keras `fit` on the layers of a workload."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from benchmarks.peers.turns import LOG, SAVE, Batches, Turns
from benchmarks.subjects import keras_model, trainer_for, usual_callbacks
from benchmarks.workloads import SIDE_BY_SIDE, Workload, pair
from prototrain import Callback, SimpleTrainer
from prototrain.callbacks import JSONWriter, Summaries


@dataclass(frozen=True)
class InMemory(Workload):
    """A workload whose batches are there."""

    arrays: Batches

    def batches(self, structure: Callable[[Any, Any], Any]) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(structure(*self.arrays)).repeat().prefetch(tf.data.AUTOTUNE)


def in_memory(name: str, batches: Batches) -> InMemory:
    """One of `SIDE_BY_SIDE` on the batches that are given."""
    return InMemory(**vars(SIDE_BY_SIDE[name]), arrays=batches)


def prototrain(name: str, batches: Batches, turns: Turns, *, usual: bool = True, form: bool | str = False) -> None:
    """With the callbacks of ``prototrain run``, or with the loss in metrics.jsonl only."""

    class InTurns(Callback):
        priority = 1000

        def next_step(self, step: int) -> int:
            return turns.end

        def trigger_step(self) -> None:
            parameters = sum(variable.shape.num_elements() for variable in self.trainer.trainable.values())  # type: ignore[attr-defined]
            turns.over(float(self.trainer.outputs["loss"]), parameters)

    def make(model: Any, **keywords: Any) -> SimpleTrainer:
        model.config["model.jit_compile"] = form
        return SimpleTrainer(model, **keywords)

    turns.begin()
    callbacks = usual_callbacks() if usual else [Summaries().every(steps=LOG), JSONWriter()]
    with tempfile.TemporaryDirectory() as scratch:
        trainer = trainer_for(in_memory(name, batches), Path(scratch) / "run", make)
        trainer.train([*callbacks, InTurns()], max_steps=turns.total)


def keras_fit(name: str, batches: Batches, turns: Turns, *, at_once: int = 1, jit: bool | str = "auto") -> None:
    """With its progress bar, TensorBoard and ModelCheckpoint."""

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


def _count(model: Any) -> int:
    return sum(variable.shape.num_elements() for variable in model.trainable_variables)
