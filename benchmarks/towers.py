"""Steps per second on several towers: prototrain and Keras `fit` under the same strategy, in turns in one process.

    python -m benchmarks.towers --towers cpu:2 --steps 1000 --rounds 5

Both train the same three-layer network with Adam on the same data, with the same batch per tower.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from prototrain import Config, SimpleTrainer
from prototrain.towers import choose_devices
from prototrain.trainers.parameter_server import SyncParameterServerTrainer
from prototrain.trainers.replicated import SyncReplicatedTrainer

WIDTH, CLASSES = 128, 10


def dataset(batch: int) -> tf.data.Dataset:
    """Random examples of 64 numbers in 10 classes, endlessly."""
    random = np.random.default_rng(0)
    x = random.normal(size=(1792, 64)).astype(np.float32)
    y = random.integers(0, CLASSES, 1792).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1792, seed=1).repeat().batch(batch, drop_remainder=True)


def build(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
    """The network and its loss."""
    hidden = keras.layers.Dense(WIDTH, activation="relu", name="fc0")(inputs["x"])
    hidden = keras.layers.Dense(WIDTH, activation="relu", name="fc1")(hidden)
    logits = keras.layers.Dense(CLASSES, name="logits")(hidden)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=logits)
    return {"loss": tf.reduce_mean(losses)}


def prototrain_runner(make: Callable[..., Any], batch: int) -> Callable[[int], None]:
    """A function that trains so many steps."""
    config = {
        "trainer.experiment_name": "towers",
        "model.batch_size": batch,
        "model.num_steps": 1,
        "model.optimizer.method": "adam",
        "model.lr_schedule.method": "constant",
        "model.lr_schedule.constant.value": 1e-3,
    }
    data = dataset(batch).map(lambda x, y: {"x": x, "y": y})
    trainer = make(SimpleNamespace(config=Config(config), datasets=lambda: {"trn": data}, build=build))

    def run(steps: int) -> None:
        done = 0
        while done < steps:
            done += trainer.run_steps(steps - done)

    return run


def keras_runner(strategy: tf.distribute.Strategy, batch: int, steps_per_execution: int) -> Callable[[int], None]:
    """A function that trains so many steps with `fit`."""
    with strategy.scope():
        layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(2)]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(CLASSES)])
        model.compile(
            keras.optimizers.Adam(1e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=steps_per_execution,
            jit_compile=False,
        )
    data = dataset(batch)
    return lambda steps: model.fit(data, steps_per_epoch=steps, epochs=1, verbose=0) and None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--towers", default="cpu:2")
    parser.add_argument("--batch", type=int, default=32, help="examples per step, over all towers")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    devices = choose_devices(options.towers)
    cpu = all(name.startswith("CPU") for name in devices)
    combine = tf.distribute.ReductionToOneDevice() if cpu else None
    runners = {
        "prototrain, 1 tower": prototrain_runner(SimpleTrainer, options.batch),
        "prototrain, replicated": prototrain_runner(lambda model: SyncReplicatedTrainer(model, devices), options.batch),
        "prototrain, parameter server": prototrain_runner(
            lambda model: SyncParameterServerTrainer(model, devices), options.batch
        ),
        "Keras fit": keras_runner(tf.distribute.MirroredStrategy(devices, combine), options.batch, 1),
        "Keras fit, 50 steps per execution": keras_runner(
            tf.distribute.MirroredStrategy(devices, combine), options.batch, 50
        ),
    }
    rates: dict[str, list[float]] = {name: [] for name in runners}
    for run in runners.values():
        run(100)  # tracing, and learning how long a call may be
    for _ in range(options.rounds):
        for name, run in runners.items():
            begin = time.perf_counter()
            run(options.steps)
            rates[name].append(options.steps / (time.perf_counter() - begin))
    print(f"{len(devices)} towers ({', '.join(devices)}), batch {options.batch}, steps/s, median of {options.rounds}")
    for name, found in rates.items():
        print(f"{name:36s} {statistics.median(found):8.0f}   ({min(found):.0f} to {max(found):.0f})")


if __name__ == "__main__":
    main()
