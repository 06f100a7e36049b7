"""Programs for `prototrain verify`, which resume exactly or do not: ``python verify_programs.py NAME``."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain import Callback, KerasTrainer, SyncReplicatedTrainer, Trainer
from prototrain.callbacks import SaveOnExit
from prototrain.trainers.tower import SimpleTrainer
from tests.tiny import tiny_arrays, tiny_model

EXPERIMENT = "experiments/verified"


class Weights(Trainer):
    """Fits a weight in Python."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.weight = self.state["weight"] = tf.Variable(1.0)

    def run_step(self) -> dict[str, Any]:
        self.weight.assign(self.weight * 0.99 + 0.001)
        return {"loss": self.weight.numpy()}


class Warmup(Callback):
    """Changes the weight by a counter, with or without `state_dict`."""

    def __init__(self) -> None:
        self.calls = 0

    def trigger_step(self) -> None:
        self.calls += 1
        self.trainer.weight.assign_sub(0.01 / self.calls)


class SavedWarmup(Warmup):
    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


class ForgetfulWarmup(SavedWarmup):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


_order = random.Random(7)  # continues from pass to pass, and no checkpoint contains it


def hidden_order() -> dict[str, tf.data.Dataset]:
    arrays = tiny_arrays()
    spec = {"x": tf.TensorSpec([4], tf.float32), "y": tf.TensorSpec([], tf.int32)}

    def examples() -> Iterator[dict[str, Any]]:
        for number in _order.sample(range(40), 40):
            yield {name: values[number] for name, values in arrays.items()}

    return {"trn": tf.data.Dataset.from_generator(examples, output_signature=spec).batch(8)}


def unseeded() -> dict[str, tf.data.Dataset]:
    x = np.random.default_rng().normal(size=(40, 4)).astype(np.float32)
    return {"trn": tf.data.Dataset.from_tensor_slices({**tiny_arrays(), "x": x}).batch(8)}


def weights(*callbacks: Callback) -> None:
    Weights().train(callbacks, max_steps=1000)


def tiny(**model: Any) -> None:
    SimpleTrainer(tiny_model(model__num_steps=1000, **model), experiment=EXPERIMENT).train([SaveOnExit()])


def towers() -> None:
    from prototrain.towers import prepare_devices

    prepare_devices("cpu:2")
    trainer = SyncReplicatedTrainer(tiny_model(model__num_steps=1000), towers="cpu:2", experiment="experiments/towers")
    trainer.train([SaveOnExit()])


def of_keras() -> None:
    from tests.keras.models import IMAGES, LABELS, convnet, made

    data = (IMAGES, LABELS[:, None])
    trainer = KerasTrainer(made(convnet), data, batch_size=8, experiment="experiments/keras")
    trainer.fit(epochs=100, verbose=0)


def trainers() -> None:
    towers()
    weights(SavedWarmup())
    of_keras()


PROGRAMS: dict[str, Callable[[], Any]] = {
    "forgetful callback": lambda: weights(ForgetfulWarmup()),
    "generator": lambda: tiny(datasets=hidden_order),
    "trainers": trainers,
    "unsaved callback": lambda: weights(Warmup()),
    "unseeded": lambda: tiny(datasets=unseeded),
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
