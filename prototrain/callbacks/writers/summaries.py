"""Callbacks that record scalars and summaries of training steps."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from statistics import fmean
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.callbacks.monitor import as_number, scalar_in
from prototrain.errors import CallbackError
from prototrain.step.variables import scratch_variable
from prototrain.towers import components


class _StepSums(Callback):
    """Base class of callbacks that update a pair of numbers for each scalar in every step.

    A compiled trainer keeps the pairs in a variable, which is created when the step is traced and its scalars are
    known. Every checkpoint holds the values.
    """

    chief_only = False  # all workers trace the same step

    def __init__(self) -> None:
        self._variable: tf.Variable | None = None  # of shape [2, scalars]
        self._names: tuple[str, ...] = ()
        self._values: dict[str, list[float]] = {}  # in a plain-Python trainer, and before tracing

    def setup(self) -> None:
        self._values, self._variable, self._names = self._pairs(), None, ()

    def _pairs(self) -> dict[str, list[float]]:
        """Return the pairs by scalar name."""
        if self._variable is None:
            return self._values
        # Raw ops, which cost a fifth of a variable's methods.
        first = components(self._variable)[0]
        pairs = tf.raw_ops.ReadVariableOp(resource=first.handle, dtype=tf.float64).numpy().T.tolist()
        return dict(zip(self._names, pairs, strict=True))

    def _traced_variable(self, names: tuple[str, ...]) -> tf.Variable:
        """Return the variable for these and all restored scalars."""
        if self._variable is None:
            with tf.init_scope():
                pairs = {**{name: [0.0, 0.0] for name in names}, **self._pairs()}
                self._names = tuple(pairs)
                self._zeros = tf.zeros([2, len(pairs)], tf.float64)
                self._variable = scratch_variable(np.transpose([*pairs.values()]), name="sums", dtype=tf.float64)
            for copy in components(self._variable):
                copy.is_scratch = True
            self.trainer.callbacks.variables.append(self._variable)
        return self._variable

    def state_dict(self) -> dict[str, Any]:
        return {"pairs": self._pairs()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = {name: [float(number) for number in pair] for name, pair in state["pairs"].items()}


class Summaries(_StepSums):
    """Records training scalars and the model's `tf.summary` calls as ``trn/...``.

        Summaries().every(steps=100)

    Scalars are averaged over the steps since the last record, except for steps with NaN or without the scalar. Sums and
    counts are updated within the compiled step and saved in every checkpoint. The learning rate, the loss scale and the
    metrics of a `KerasTrainer` are recorded without averaging; see `Trainer.unaveraged`. `trainer.outputs` holds the
    last step's values.

    The model may call `tf.summary.image`, `histogram`, `audio`, `text` and `scalar` in a compiled step, such as in
    `build`, without a writer and a step. The calls of the last step are recorded and cost nothing in other steps. They
    come from the first micro-batch of the first tower; return a scalar from `build` for its mean over all of them.
    Asynchronous towers and several workers record only returned scalars.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[int, dict[str, float]] = (-1, {})  # step and means of the last record

    def watches(self) -> Collection[str] | None:
        return ()

    def after_run(self, outputs: dict[str, Any]) -> None:
        if tf.executing_eagerly():
            for name, value in outputs.items():
                number = as_number(f"trn/{name}", value)
                total = self._values.setdefault(name, [0.0, 0])
                if not math.isnan(number):
                    total[0] += number
                    total[1] += 1
            return
        scalars = {name: value for name, value in outputs.items() if value.shape.rank == 0}
        if not scalars:
            return
        variable = self._traced_variable(tuple(scalars))
        values = [scalars.get(name, tf.constant(math.nan)) for name in self._names]
        dtype = tf.float32 if all(value.dtype == tf.float32 for value in values) else tf.float64
        row = tf.stack([tf.cast(value, dtype) for value in values])
        is_nan = tf.math.is_nan(row)
        new = tf.stack([tf.where(is_nan, tf.zeros([], dtype), row), tf.cast(~is_nan, dtype)])
        variable.assign_add(tf.cast(new, tf.float64))

    def means(self) -> dict[str, float]:
        """Return the means over the steps since the last record, or the recorded means at the step of a record."""
        step, recorded = self._last
        if step == self.trainer.global_step:
            return recorded
        found = {name: as_number(f"trn/{name}", value) for name, value in self.trainer.outputs.items()}
        for name, (total, count) in self._pairs().items():
            if count and not (name in found and name in self.trainer.unaveraged):
                found[name] = total / count
        return found

    def trigger(self) -> None:
        # A resumed run that repeats this step records the same means again.
        self._last = self.trainer.global_step, self.means()
        self._values = {}
        if self._variable is not None:
            for copy in components(self._variable):
                tf.raw_ops.AssignVariableOp(resource=copy.handle, value=self._zeros)
        self.trainer.monitors.put_scalars(self._last[1], "trn")
        scalars: dict[str, list[float]] = {}
        for event in self.trainer.summary_events:
            numbers = {
                value.tag: as_number(value.tag, found)
                for value in event.summary.value
                if (found := scalar_in(value)) is not None
            }
            for name, number in numbers.items():
                scalars.setdefault(name, []).append(number)  # a loop may give several values
            if not numbers:
                self.trainer.monitors.put_summary(event.summary, "trn")
        self.trainer.monitors.put_scalars({name: fmean(found) for name, found in scalars.items()}, "trn")

    def state_dict(self) -> dict[str, Any]:
        step, means = self._last
        return {**super().state_dict(), "step": step, "means": means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._last = int(state["step"]), {name: float(mean) for name, mean in state["means"].items()}


class MovingAverageSummary(_StepSums):
    """Records exponential moving averages of scalars as ``trn/<name>_average``.

        MovingAverageSummary("loss", decay=0.99).every(steps=100)

    The averages are updated within the compiled call and saved in every checkpoint.

    Args:
        names: names of the step's scalars.
        pattern: a regular expression for full names, instead of `names`; ``.*`` for all scalars.
        decay: the decay of the averages, between 0 and 1.

    Raises:
        CallbackError: `decay` is out of range, or both or neither of `names` and `pattern` are given; while training,
            if there is no such scalar.
    """

    def __init__(self, *names: str, pattern: str | None = None, decay: float = 0.95) -> None:
        if bool(names) == (pattern is not None):
            raise CallbackError("MovingAverageSummary: name the scalars, such as 'loss', or give pattern='.*'")
        if not 0 < decay < 1:
            raise CallbackError(f"MovingAverageSummary: decay must be between 0 and 1, got {decay!r}")
        super().__init__()
        self._pattern = None if pattern is None else re.compile(pattern)
        self.names = names
        self.decay = decay
        self.state_key = f"MovingAverageSummary/{decay}/{pattern or ','.join(names)}"

    def after_run(self, outputs: dict[str, Any]) -> None:
        names = self.names
        if self._pattern is not None:
            names = tuple(name for name in outputs if self._pattern.fullmatch(name))
        missing = [name for name in names if name not in outputs]
        if missing or not names:
            wanted = ", ".join(missing) or repr(self._pattern and self._pattern.pattern)
            known = ", ".join(outputs) or "none"
            raise CallbackError(f"MovingAverageSummary: the step has no scalar {wanted}; it has: {known}")
        # Keep the weighted sum of each scalar's values and the sum of the weights.
        if tf.executing_eagerly():
            for name in names:
                total, weight = self._values.get(name, [0.0, 0.0])
                self._values[name] = [self._moved(total, as_number(name, outputs[name])), self._moved(weight, 1.0)]
            return
        variable = self._traced_variable(names)
        values = [tf.cast(outputs[name], tf.float64) for name in self._names]
        variable.assign(self._moved(variable, tf.stack([values, [tf.constant(1.0, tf.float64)] * len(values)])))

    def _moved(self, old: Any, new: Any) -> Any:
        return self.decay * old + (1 - self.decay) * new

    def trigger(self) -> None:
        pairs = self._pairs().items()
        averages = {f"{name}_average": total / weight for name, (total, weight) in pairs if weight}
        self.trainer.monitors.put_scalars(averages, "trn")


class GradientNorm(Callback):
    """Adds ``gradient_norm``, the global L2 norm of the gradients, to the scalars of each compiled step.

    The norm is computed from the gradients averaged over the towers, before any gradient processor. If a `train_step`
    applies gradients several times, the later norms are named ``gradient_norm_2`` and so on.
    """

    chief_only = False

    def setup(self) -> None:
        if self.trainer.optimizer is None:
            kind = type(self.trainer).__name__
            raise CallbackError(f"GradientNorm needs a trainer that applies gradients; {kind} has no optimizer")
        self.trainer.record_gradient_norm = True
