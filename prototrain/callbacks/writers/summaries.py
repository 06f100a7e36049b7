"""Callbacks that record scalars and summaries of training steps."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from prototrain.callbacks.base import Callback
from prototrain.callbacks.monitor import as_number
from prototrain.errors import CallbackError


class _StepSums(Callback):
    """Base class of callbacks that keep a sum and a weight for each scalar. Every checkpoint holds them."""

    chief_only = False  # callbacks of all workers decide by what they record

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums = {name: [float(number) for number in pair] for name, pair in state["sums"].items()}


class Summaries(_StepSums):
    """Records training scalars and the model's `tf.summary` calls as ``trn/...``.

        Summaries().every(steps=100)

    Scalars are averaged over the steps since the last record, except for steps with NaN or without the scalar. Sums and
    counts are saved in every checkpoint. The learning rate, the loss scale and the metrics of a `KerasTrainer` are
    recorded without averaging; see `Trainer.unaveraged`. `trainer.outputs` holds the last step's values.

    The model may call `tf.summary.image`, `histogram`, `audio`, `text` and `scalar` in a compiled step, without a
    writer and a step. Only the calls of the last step are recorded, of the first micro-batch on the first tower; two
    scalars of one name are an error. With asynchronous towers or several workers, only returned scalars are recorded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[int, dict[str, float]] = (-1, {})  # step and means of the last record

    def watches(self) -> Collection[str] | None:
        return ()

    def after_steps(self, scalars: Mapping[str, Sequence[Any]]) -> None:
        for name, values in scalars.items():
            pair = self._sums.setdefault(name, [0.0, 0.0])
            for value in _numbers(name, values):
                pair[0] += value
                pair[1] += 1

    def means(self) -> dict[str, float]:
        """Return the means over the steps since the last record, or the recorded means at the step of a record."""
        step, recorded = self._last
        if step == self.trainer.global_step:
            return recorded
        found = {name: as_number(f"trn/{name}", value) for name, value in self.trainer.outputs.items()}
        for name, (total, count) in self._sums.items():
            if count and not (name in found and name in self.trainer.unaveraged):
                found[name] = total / count
        return found

    def trigger(self) -> None:
        # A resumed run that repeats this step records the same means again.
        self._last = self.trainer.global_step, self.means()
        self._sums = {}
        self.trainer.monitors.put_scalars(self._last[1], "trn")
        for event in self.trainer.summary_events:
            self.trainer.monitors.put_summary(event.summary, "trn")

    def state_dict(self) -> dict[str, Any]:
        step, means = self._last
        return {**super().state_dict(), "step": step, "means": means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._last = int(state["step"]), {name: float(mean) for name, mean in state["means"].items()}


class MovingAverageSummary(_StepSums):
    """Records exponential moving averages of scalars as ``trn/<name>_average``.

        MovingAverageSummary("loss", decay=0.99).every(steps=100)

    The averages are corrected for their start at 0, leave out steps with NaN, and are saved in every checkpoint.

    Args:
        names: names of the step's scalars, or regular expressions for full names; ``.*`` for all scalars.
        decay: the decay of the averages, between 0 and 1.

    Raises:
        CallbackError: `decay` is out of range, or `names` are not valid; while training, if there is no such scalar.
    """

    def __init__(self, *names: str, decay: float = 0.95) -> None:
        try:
            self._patterns = [re.compile(name) for name in names]
        except (re.error, TypeError) as error:
            raise CallbackError(f"MovingAverageSummary: not names or regular expressions: {names}, {error}") from error
        if not names:
            raise CallbackError("MovingAverageSummary: name the scalars, such as 'loss', or '.*' for all")
        if not 0 < decay < 1:
            raise CallbackError(f"MovingAverageSummary: decay must be between 0 and 1, got {decay!r}")
        super().__init__()
        self.names = names
        self.decay = decay
        self.state_key = f"MovingAverageSummary/{decay}/{','.join(names)}"

    def after_steps(self, scalars: Mapping[str, Sequence[Any]]) -> None:
        found = {one.pattern: [name for name in scalars if one.fullmatch(name)] for one in self._patterns}
        if missing := [pattern for pattern, names in found.items() if not names]:
            known = ", ".join(scalars) or "none"
            raise CallbackError(f"MovingAverageSummary: the step has no scalar {', '.join(missing)}; it has: {known}")
        # Keep the weighted sum of each scalar's values and the sum of the weights.
        for name in dict.fromkeys(chain.from_iterable(found.values())):
            total, weight = self._sums.get(name, (0.0, 0.0))
            for value in _numbers(name, scalars[name]):
                total = self.decay * total + (1 - self.decay) * value
                weight = self.decay * weight + (1 - self.decay)
            self._sums[name] = [total, weight]

    def trigger(self) -> None:
        averages = {f"{name}_average": total / weight for name, (total, weight) in self._sums.items() if weight}
        self.trainer.monitors.put_scalars(averages, "trn")


def _numbers(name: str, values: Sequence[Any]) -> list[float]:
    """Return the values of a scalar that are not NaN."""
    numbers = [value if type(value) is float else as_number(f"trn/{name}", value) for value in values]
    return [number for number in numbers if number == number]


class GradientNorm(Callback):
    """Adds ``gradient_norm``, the global L2 norm of the gradients, to the scalars of each compiled step.

    The norm is computed from the gradients averaged over the towers, before any gradient processor. If a `train_step`
    applies gradients several times, the later norms are named ``gradient_norm_2`` and so on.
    """

    chief_only = False

    def setup(self) -> None:
        if self.trainer.optimizer is None:
            kind = type(self.trainer).__name__
            raise CallbackError(f"GradientNorm needs a trainer that applies gradients; set self.optimizer of {kind}")
        self.trainer.record_gradient_norm = True
