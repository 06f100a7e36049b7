"""Runs whose checkpoints of an earlier version are kept beside this file.

`python -m tests.earlier.programs` writes them anew: with the version that is to be resumed from, before a change of
what a checkpoint holds.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain import Callback, SimpleTrainer, SyncReplicatedTrainer, Trainer
from prototrain.callbacks import (
    EarlyStopping,
    ExponentialMovingAverage,
    JSONWriter,
    LearningRate,
    MinSaver,
    SaveOnExit,
    StopOnNaN,
    Validation,
)
from tests.tiny import CountingTrainer, PressesCtrlC, tiny_arrays, tiny_datasets, tiny_model

HERE = Path(__file__).parent
SAVED_AT = 7
LAST = 20


def generated() -> dict[str, tf.data.Dataset]:
    """Data that Python makes, whose place has to be read again."""
    spec = {"x": tf.TensorSpec([4]), "y": tf.TensorSpec([], tf.int32)}
    arrays = tiny_arrays()
    examples = [{"x": arrays["x"][k], "y": arrays["y"][k]} for k in range(40)]
    data = tf.data.Dataset.from_generator(lambda: iter(examples), output_signature=spec)
    return {**tiny_datasets(), "trn": data.shuffle(8).batch(8)}


def simple(experiment: Path) -> Trainer:
    return SimpleTrainer(tiny_model(), experiment=experiment)


def replayed(experiment: Path) -> Trainer:
    return SimpleTrainer(tiny_model(datasets=generated), experiment=experiment)


def towers(experiment: Path) -> Trainer:
    return SyncReplicatedTrainer(tiny_model(), ["CPU:0", "CPU:1"], experiment=experiment)


def counting(experiment: Path) -> Trainer:
    return CountingTrainer(experiment=experiment)


PROGRAMS: dict[str, Callable[[Path], Trainer]] = {
    program.__name__: program for program in (simple, replayed, towers, counting)
}


def train(trainer: Trainer, *more: Callback) -> None:
    """Train to the end, with callbacks of every kind that have a state."""
    callbacks: list[Callback] = [JSONWriter(), SaveOnExit(), StopOnNaN(), *more]
    if not isinstance(trainer, CountingTrainer):
        callbacks += [
            LearningRate(lambda step: 0.01 * 0.9 ** (tf.cast(step, tf.float32) / 10)),
            ExponentialMovingAverage(0.9),
            Validation().every(steps=4),
            MinSaver("vld/loss").every(steps=4),
            EarlyStopping("vld/loss", mode="min", patience=9, restore_best=True).every(steps=4),
        ]
    trainer.train(callbacks, steps_per_epoch=5, max_steps=LAST)


def content(trainer: Trainer) -> dict[str, Any]:
    """All values that a checkpoint of the trainer would hold, by name."""
    return {name: np.asarray(tf.convert_to_tensor(entry)) for name, entry in trainer.state.items() if name != "data"}


def main() -> None:
    """Write the checkpoints, and what each run came to."""
    for name, program in PROGRAMS.items():
        home = HERE / name
        shutil.rmtree(home, ignore_errors=True)
        with suppress(KeyboardInterrupt):
            train(program(home), PressesCtrlC(SAVED_AT))
        kept = home / "checkpoints" / f"step-{SAVED_AT:010d}"
        copy = shutil.copytree(kept, HERE / f".{name}")
        resumed = program(home)
        train(resumed)
        shutil.rmtree(home)
        copy.rename(home)
        np.savez_compressed(home.with_suffix(".npz"), **content(resumed))


if __name__ == "__main__":
    from prototrain.towers import make_cpu_devices

    make_cpu_devices(4)
    main()
