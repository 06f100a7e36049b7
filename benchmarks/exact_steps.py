"""Steps drawn from a grammar of layers and random ops: is a resume that says "exact" exact?

    python -m benchmarks.exact_steps --steps 200 --seed 1

Each is trained without a break, and once more with a stop in the middle, after which everything is made anew under
other states of all global random generators. A run that says that it goes on exactly has to end in the same bits.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from prototrain import Config, SimpleTrainer
from prototrain.callbacks import LearningRate, SaveOnExit, StopOnNaN

Layer = Callable[[Any, bool, "Drawn"], Any]
UNITS, STEPS, STOP_AT = 6, 8, 3


def _with(factory: Callable[[], Any]) -> Layer:
    return lambda x, training, drawn: factory()(x)


def _noisy(factory: Callable[[], Any]) -> Layer:
    return lambda x, training, drawn: factory()(x, training=training)


def _branch(x: Any, training: bool, drawn: Drawn) -> Any:
    return tf.cond(tf.reduce_mean(x) > 0, lambda: x + tf.random.normal(tf.shape(x)), lambda: x)


def _counted(x: Any, training: bool, drawn: Drawn) -> Any:
    counter = tf.Variable(0.0, trainable=False, name="counter")
    counter.assign_add(1.0)
    return x * (1.0 + counter / 100.0)


GRAMMAR: dict[str, Layer] = {
    "dense": _with(lambda: keras.layers.Dense(UNITS, activation="tanh")),
    "batch_norm": _noisy(lambda: keras.layers.BatchNormalization()),
    "layer_norm": _with(lambda: keras.layers.LayerNormalization()),
    "dropout": _noisy(lambda: keras.layers.Dropout(0.3)),
    "seeded_dropout": _noisy(lambda: keras.layers.Dropout(0.3, seed=5)),
    "alpha_dropout": _noisy(lambda: keras.layers.AlphaDropout(0.2)),
    "gaussian_noise": _noisy(lambda: keras.layers.GaussianNoise(0.1)),
    "sequential": _noisy(lambda: keras.Sequential([keras.layers.Dense(UNITS), keras.layers.Dropout(0.2)])),
    "recurrent": lambda x, training, drawn: keras.layers.GRU(UNITS, dropout=0.2)(x[:, None, :], training=training),
    "counter": _counted,
    "stateless": lambda x, training, drawn: x + tf.random.stateless_normal(tf.shape(x), [1, 2]),
    "keras_random": lambda x, training, drawn: x + 0.1 * keras.random.normal(tf.shape(x)),
    "seed_generator": lambda x, training, drawn: x + 0.1 * keras.random.normal(tf.shape(x), seed=drawn.seeds),
    "tf_generator": lambda x, training, drawn: x + 0.1 * drawn.generator.normal(tf.shape(x)),
    "tf_normal": lambda x, training, drawn: x + 0.1 * tf.random.normal(tf.shape(x)),
    "tf_uniform_seeded": lambda x, training, drawn: x + tf.random.uniform(tf.shape(x), seed=4),
    "tf_dropout": lambda x, training, drawn: tf.nn.dropout(x, 0.2) if training else x,
    "tf_shuffle": lambda x, training, drawn: tf.random.shuffle(x),
    "branch": _branch,
    "numpy": lambda x, training, drawn: _numpy(x),
    "loop": lambda x, training, drawn: tf.map_fn(lambda row: row * 1.01, x),
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "sgd": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "adamw": lambda: keras.optimizers.AdamW(0.01),
}


def _numpy(x: Any) -> Any:
    noise = tf.numpy_function(lambda a: a + np.random.normal(size=a.shape).astype(np.float32), [x], tf.float32)
    noise.set_shape(x.shape)
    return noise


class Drawn:
    """A model drawn from the grammar.

    Args:
        names: of its layers, one after the other.
        optimizer: one of `OPTIMIZERS`.
    """

    def __init__(self, names: Sequence[str], optimizer: str) -> None:
        self.names = names
        self.generator = tf.random.Generator.from_seed(11)
        self.seeds = keras.random.SeedGenerator(12, name="drawn")
        self.config = Config(
            {
                "trainer.experiment_name": "drawn",
                "model.batch_size": 5,
                "model.num_steps": STEPS,
                "model.optimizer.method": OPTIMIZERS[optimizer](),
            }
        )

    def datasets(self) -> dict[str, tf.data.Dataset]:
        """Shuffled points in a space of `UNITS` dimensions."""
        x = np.random.default_rng(0).normal(size=(20, UNITS)).astype(np.float32)
        return {"trn": tf.data.Dataset.from_tensor_slices({"x": x, "y": x[:, :1]}).shuffle(20).batch(5)}

    def build(self, inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        """The drawn layers, and one that predicts."""
        x = inputs["x"]
        for name in self.names:
            x = GRAMMAR[name](x, train_phase, self)
        return {"loss": tf.reduce_mean((keras.layers.Dense(1)(x) - inputs["y"]) ** 2)}


def draw(source: random.Random) -> tuple[list[str], str, bool]:
    """Names of layers, an optimizer, and whether it has a schedule."""
    names = source.choices(list(GRAMMAR), k=source.randint(1, 4))
    return names, source.choice(list(OPTIMIZERS)), source.random() < 0.5


def resumes(names: Sequence[str], optimizer: str, scheduled: bool, directory: Path) -> tuple[str, bool]:
    """Train with and without a break.

    Returns:
        the line that the resumed run begins with, and whether it ended in the same bits.
    """

    def train(end: int, experiment: Path | None) -> SimpleTrainer:
        trainer = SimpleTrainer(Drawn(names, optimizer), experiment=experiment)
        schedule = [LearningRate(lambda step: 0.01 / (1.0 + tf.cast(step, tf.float32)))] if scheduled else []
        saver = [] if experiment is None else [SaveOnExit()]
        trainer.train([*schedule, *saver, StopOnNaN()], max_steps=end)
        return trainer

    whole = train(STEPS, None)
    train(STOP_AT, directory)
    _move_generators_on()
    resumed = train(STEPS, directory)
    return resumed.session.resume_line(), _bits(whole) == _bits(resumed)


def _move_generators_on() -> None:
    for _ in range(7):
        tf.random.normal([3])
        keras.random.normal([3])
        np.random.normal()
        random.random()


def _bits(trainer: SimpleTrainer) -> dict[str, bytes]:
    return {name: np.asarray(tf.convert_to_tensor(variable)).tobytes() for name, variable in trainer.variables.items()}


def main(arguments: list[str] | None = None) -> None:
    """Try as many as the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact_steps", description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="how many to draw")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    source = random.Random(options.seed)
    counts: Counter[str] = Counter()
    for _ in range(options.steps):
        drawn = draw(source)
        with tempfile.TemporaryDirectory() as directory, redirect_stdout(open(os.devnull, "w")):
            line, same = resumes(*drawn, Path(directory) / "run")
        said = "exact" if line.endswith(", exact") else "not exact"
        counts[f"said {said}, was {'' if same else 'not '}exact"] += 1
        if said == "exact" and not same:
            print("COUNTEREXAMPLE", drawn, line, flush=True)
        if said != "exact" and same:
            print("called inexact without need:", drawn, line, flush=True)
    print(dict(counts))
    sys.exit(counts["said exact, was not exact"] > 0)


if __name__ == "__main__":
    main()
