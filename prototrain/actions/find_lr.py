"""Find an initial learning rate: train some steps with a growing rate, and find where the loss falls.

The action runs the range test of L. N. Smith, "Cyclical Learning Rates for Training Neural Networks" (2015, 2017). As
in fastai's `lr_find`, the rate grows by a constant factor, the loss is smoothed, the test ends at four times the lowest
loss, and the suggestion is the `valley`.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Final

import tensorflow as tf

from prototrain.actions.files import add_plot, write_plot
from prototrain.callbacks import Callback, LearningRate
from prototrain.errors import ConfigError, StopTraining
from prototrain.model import ModelProtocol
from prototrain.system.terminal import say
from prototrain.trainers.tower import SimpleTrainer

SMOOTHING: Final = 0.98
DIVERGED: Final = 4.0  # times the lowest loss
_BY_RATE: Final = ("constant", "exp", "cosine", "polynomial")  # schedules that start at their `value`

Point = tuple[float, float]
"""A learning rate and the smoothed loss after a step with it."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action's arguments to a parser."""
    parser.add_argument("--start", metavar="RATE", type=float, default=1e-7, help="default: %(default)s")
    parser.add_argument("--end", metavar="RATE", type=float, default=10.0, help="default: %(default)s")
    parser.add_argument("--steps", metavar="N", type=int, default=100, help="in all; default: %(default)s")
    add_plot(parser, "find_lr.png")


def run(model: ModelProtocol, args: Namespace) -> None:
    """Print a learning rate, and plot the loss over the rates.

    The action trains a new copy of the model with the config's optimizer, from ``model.weights_load_path`` if it is
    set. The experiment is not changed.
    """
    if not 0 < args.start < args.end < math.inf or args.steps < 20:
        raise ConfigError("find_lr: --start must be above 0 and below --end, and --steps at least 20")
    points = try_rates(model, args.start, args.end, args.steps)
    points = points[args.steps // 10 : -5]
    if len(points) < 6:
        raise ConfigError(f"find_lr: the loss diverged within a few steps; start below {args.start:g}")
    valley = suggest_valley(points)
    rate = valley[0]
    if min(loss for _, loss in points) > 0.98 * points[0][1]:
        say("WARNING: the loss has hardly fallen at any rate, so these numbers mean little; take more --steps")
    method = model.config.get("model.lr_schedule.method")
    kind = method if method in _BY_RATE else "constant"
    also = "" if kind == method else f" -s model.lr_schedule.method={kind}"
    say(f"try -s model.lr_schedule.{kind}.value={rate:.2g}{also}", end="\n\n")
    write_plot(args.output, points, valley, f"in the valley: {rate:.2g}", axes=("learning rate", "smoothed loss"))


def try_rates(model: ModelProtocol, start: float, end: float, steps: int) -> list[Point]:
    """Train a new copy of the model with a growing rate; returns one point per step until the loss diverges."""
    trainer = SimpleTrainer(model)
    growth = math.log(end / start)

    def schedule(step: tf.Tensor) -> tf.Tensor:
        return start * tf.exp(growth * tf.cast(step, tf.float32) / steps)

    curve = _Curve()
    trainer.train([LearningRate(schedule), curve], max_steps=steps, max_epoch=None)
    return curve.points


class _Curve(Callback):
    """Records the smoothed loss of each step, and ends the run when it diverges."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._mean = 0.0
        self._not_finite = 0  # steps in a row

    def trigger_step(self) -> None:
        outputs = self.trainer.outputs
        loss = float(outputs.get("loss_total", outputs["loss"]))
        if not math.isfinite(loss):
            self._not_finite += 1
            if self._not_finite > 1:  # one NaN may be a batch without weight
                raise StopTraining("the loss is not finite any more")
            return
        self._not_finite = 0
        self._mean = SMOOTHING * self._mean + (1 - SMOOTHING) * loss
        smoothed = self._mean / (1 - SMOOTHING ** (len(self.points) + 1))
        self.points.append((float(outputs["learning_rate"]), smoothed))
        lowest = min(loss for _, loss in self.points)
        if smoothed > DIVERGED * lowest > 0:
            raise StopTraining(f"the loss is {DIVERGED:g} times as high as at its lowest")


def suggest_valley(points: Sequence[Point]) -> Point:
    """Return the point in the middle of the longest decreasing subsequence of losses."""
    lengths = [1] * len(points)
    for index, (_, loss) in enumerate(points):
        below = (lengths[before] + 1 for before in range(index) if points[before][1] > loss)
        lengths[index] = max(below, default=1)
    longest = max(lengths)
    end = lengths.index(longest)
    third = longest / 3
    return points[max(end - longest + int(third) + int(third / 2), 0)]
