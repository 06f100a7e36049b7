"""Recording the scalars and summaries of training steps."""

from __future__ import annotations

import math
from collections.abc import Collection
from statistics import fmean
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback, begins_anew
from prototrain.callbacks.monitor import as_json, as_number, scalar_in
from prototrain.errors import CallbackError
from prototrain.step.variables import scratch_variable
from prototrain.towers import components


class Summaries(Callback):
    """Records the means of the training scalars over the steps since the last record, as ``trn/...``, and what the
    model gave to `tf.summary` in the last step.

    Sums and counts are kept within the compiled step and are part of every checkpoint. A step whose value is NaN, or
    that has no such scalar, is left out of the mean. Scalars that are no property of one batch, such as the learning
    rate and the metrics of a `KerasTrainer`, are recorded as they are; see `Trainer.unaveraged`. The last step's values
    are in `trainer.outputs`.

    `tf.summary.image`, `histogram`, `audio`, `text` and `scalar` may be called anywhere in a compiled step, such as in
    `build`, without a writer and without a step. They cost nothing in the steps that are not recorded. What the first
    tower gives in its first micro-batch is recorded; return a scalar from `build` for the mean over all of them.
    Asynchronous towers and several workers record what a step returns only.

    Args:
        prefix: what the scalars' names start with.
    """

    chief_only = False  # all workers trace the same step

    def __init__(self, *, prefix: str = "trn") -> None:
        self.prefix = prefix
        self.state_key = f"Summaries/{prefix}"
        self._forget()

    def _forget(self) -> None:
        self._names: tuple[str, ...] = ()
        self._variable: tf.Variable | None = None  # of a compiled trainer: the sums, and below them the counts
        self._totals: dict[str, list[float]] = {}  # the same elsewhere, and before the step is traced
        self._last: tuple[int, dict[str, float]] = (-1, {})  # the step and the means of the last record

    def setup(self) -> None:
        self.trainer.monitors.announce(self, self.prefix, None)
        if begins_anew(self):
            self._forget()
        self._totals, self._variable, self._names = self._sums_and_counts(), None, ()

    def watches(self) -> Collection[str] | None:
        return ()

    def after_run(self, outputs: dict[str, Any]) -> None:
        if tf.executing_eagerly():
            for name, value in outputs.items():
                number = as_number(f"{self.prefix}/{name}", value)
                total = self._totals.setdefault(name, [0.0, 0])
                if not math.isnan(number):
                    total[0] += number
                    total[1] += 1
            return
        scalars = {name: value for name, value in outputs.items() if value.shape.rank == 0}
        if not scalars:
            return
        if self._variable is None or not set(self._names).issuperset(scalars):
            self._variable = self._make_variable(scalars)
        values = [scalars.get(name, tf.constant(math.nan)) for name in self._names]
        dtype = tf.float32 if all(value.dtype == tf.float32 for value in values) else tf.float64
        row = tf.stack([tf.cast(value, dtype) for value in values])
        is_nan = tf.math.is_nan(row)
        new = tf.stack([tf.where(is_nan, tf.zeros([], dtype), row), tf.cast(~is_nan, dtype)])
        self._variable.assign_add(tf.cast(new, tf.float64))

    def _make_variable(self, scalars: Collection[str]) -> tf.Variable:
        """Make the variable for these scalars and all before: `SetTrainable` may add some during the run."""
        with tf.init_scope(), self.trainer._setup_scope():
            totals = {**{name: [0.0, 0] for name in scalars}, **self._sums_and_counts()}
            self._names = tuple(totals)
            made = scratch_variable(np.transpose([*totals.values()]), name="sums", dtype=tf.float64)
        for copy in components(made):
            copy.is_scratch = True
        self.trainer.callbacks.variables.append(made)
        return made

    def _sums_and_counts(self) -> dict[str, list[float]]:
        if self._variable is None:
            return self._totals
        pairs = tf.convert_to_tensor(self._variable).numpy().T.tolist()
        return dict(zip(self._names, pairs, strict=True))

    def means(self) -> dict[str, float]:
        """The means over the steps since the last record; right after a record, its own."""
        step, recorded = self._last
        if step == self.trainer.global_step:
            return recorded
        found = {name: as_number(f"{self.prefix}/{name}", value) for name, value in self.trainer.outputs.items()}
        for name, (total, count) in self._sums_and_counts().items():
            if count and not (name in found and name in self.trainer.unaveraged):
                found[name] = total / count
        return found

    def trigger(self) -> None:
        # A resumed run that has to finish a step records what that step has recorded before.
        self._last = self.trainer.global_step, self.means()
        self._totals = {}
        if self._variable is not None:
            self._variable.assign(tf.zeros_like(self._variable))
        self.trainer.monitors.put_scalars(self._last[1], self.prefix)
        scalars: dict[str, list[float]] = {}
        for event in self.trainer.summary_events:
            numbers = {
                value.tag: as_number(value.tag, found)
                for value in event.summary.value
                if (found := scalar_in(value)) is not None
            }
            for name, number in numbers.items():
                scalars.setdefault(name, []).append(number)  # a loop may give several
            if not numbers:
                self.trainer.monitors.put_summary(event.summary, self.prefix)
        self.trainer.monitors.put_scalars({name: fmean(found) for name, found in scalars.items()}, self.prefix)

    def state_dict(self) -> dict[str, Any]:
        step, means = self._last
        totals = {name: [as_json(total), count] for name, (total, count) in self._sums_and_counts().items()}
        return {"totals": totals, "step": step, "means": {name: as_json(mean) for name, mean in means.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._totals = {name: [float(total), float(count)] for name, (total, count) in state["totals"].items()}
        self._last = int(state["step"]), {name: float(mean) for name, mean in state["means"].items()}


class GradientNorm(Callback):
    """Adds ``gradient_norm`` to the scalars of each compiled step: the L2 norm of all gradients together.

    It is that of the gradients averaged over the towers, before any gradient processor. A `train_step` that applies
    gradients several times gives ``gradient_norm_2`` and so on.
    """

    chief_only = False

    def setup(self) -> None:
        if self.trainer.optimizer is None:
            raise CallbackError(
                f"GradientNorm needs a trainer that applies gradients; {type(self.trainer).__name__} has no optimizer"
            )
        self.trainer.record_gradient_norm = True
