"""One run of the kill storm: a small model with all kinds of state that a resume could lose."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prototrain.system.terminal import import_tensorflow

import_tensorflow()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from prototrain import Callback, Config, ModelDict, SimpleTrainer, Trainer  # noqa: E402
from prototrain.callbacks import (  # noqa: E402
    JSONWriter,
    LearningRate,
    MinSaver,
    ModelSaver,
    SaveOnExit,
    StopOnNaN,
    Summaries,
    TensorBoardWriter,
    Validation,
)
from prototrain.towers import make_cpu_devices  # noqa: E402


class MovingAverage(Callback):
    """Keeps a moving average of the loss, step by step, on the host."""

    def __init__(self) -> None:
        self.average = 0.0

    def trigger(self) -> None:
        self.average = 0.9 * self.average + 0.1 * self.trainer.outputs["loss"]
        self.trainer.monitors.put_scalar("trn/average", self.average)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = state["average"]


class Progress(Callback):
    """Prints when the run is set up, and then its progress."""

    def before_train(self) -> None:
        print("before the first step", flush=True)

    def trigger(self) -> None:
        print(f"made step {self.trainer.global_step}", flush=True)


def callbacks() -> list[Callback]:
    """Callbacks with every kind of state, and saves often enough to be killed in."""
    return [
        LearningRate(lambda step: 0.01 * 0.9 ** (step / 100)),
        Validation(batches=2).every(steps=20),
        MovingAverage().every(steps=5),
        MinSaver("vld/loss").every(steps=20),
        Summaries().every(steps=1),
        JSONWriter(),
        TensorBoardWriter(),
        ModelSaver(max_to_keep=2).every(steps=15),
        SaveOnExit(),
        StopOnNaN(),
        Progress().every(steps=1),
    ]


def arrays(examples: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Random images and labels that depend on them."""
    random = np.random.default_rng(seed)
    images = random.normal(size=(examples, 64)).astype(np.float32)
    return {"images": images, "labels": (images @ random.normal(size=(64, 10))).argmax(1).astype(np.int32)}


def trn(kind: str) -> tf.data.Dataset:
    """A shuffled and mapped dataset with the data position that `kind` names."""
    data = arrays(500, 1)
    if kind == "replay":

        def generate() -> Any:
            for index in np.random.default_rng(7).permutation(500):
                yield {name: values[index] for name, values in data.items()}

        spec = {"images": tf.TensorSpec((64,), tf.float32), "labels": tf.TensorSpec((), tf.int32)}
        dataset = tf.data.Dataset.from_generator(generate, output_signature=spec)
    else:
        dataset = tf.data.Dataset.from_tensor_slices(data)
    return dataset.shuffle(200).map(lambda example: example, num_parallel_calls=2).batch(16, drop_remainder=True)


def build(inputs: dict[str, tf.Tensor], train_phase: bool) -> ModelDict:
    """Dense layers with batch normalisation and dropout."""
    net = ModelDict()
    net.images = inputs["images"]
    net.fc0 = keras.layers.Dense(64, activation="relu", name="fc0")(net.last)
    net.bn0 = keras.layers.BatchNormalization(name="bn0")(net.last, training=train_phase)
    net.dropout = keras.layers.Dropout(0.3, name="dropout")(net.last, training=train_phase)
    net.logits = keras.layers.Dense(10, name="logits")(net.last)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["labels"], logits=net.logits)
    net.loss = tf.reduce_mean(losses)
    return net


def make_trainer(kind: str, directory: Path, steps: int) -> Trainer:
    """The trainer of a kind."""
    config = Config(
        {
            "trainer.experiment_name": "storm",
            "model.batch_size": 16,
            "model.num_steps": steps,
            "model.weight_decay.value": 1e-4,
            "model.optimizer.method": "adam",
            "model.lr_schedule.method": "exp",
            "model.lr_schedule.exp.value": 0.01,
            "model.lr_schedule.exp.decay_rate": 0.9,
            "model.lr_schedule.exp.decay_steps": 100,
        }
    )
    vld = tf.data.Dataset.from_tensor_slices(arrays(80, 2)).batch(30)
    model = SimpleNamespace(config=config, build=build, datasets=lambda: {"trn": trn(kind), "vld": vld}, name=kind)
    if kind == "towers":
        from prototrain.trainers.replicated import SyncReplicatedTrainer

        return SyncReplicatedTrainer(model, towers="cpu:2", experiment=directory)
    return SimpleTrainer(model, experiment=directory)


def main() -> None:
    """Train, or resume, the run that the arguments name: kind, directory, steps."""
    kind, directory, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if kind == "towers":
        make_cpu_devices(2)
    trainer = make_trainer(kind, directory, steps)
    trainer.train(callbacks(), steps_per_epoch=35, max_steps=steps)
    print(f"finished at step {trainer.global_step}")


if __name__ == "__main__":
    main()
