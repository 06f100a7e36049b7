"""Recording the scalars and summaries of training steps."""

from __future__ import annotations

from collections.abc import Collection
from statistics import fmean

from prototrain.callbacks.base import Callback
from prototrain.callbacks.monitor import as_number, scalar_in
from prototrain.errors import CallbackError


class Summaries(Callback):
    """Sends the last step's scalars to the monitors, as ``trn/...``, and what the model gave to `tf.summary` in that
    step.

    `tf.summary.image`, `histogram`, `audio`, `text` and `scalar` may be called anywhere in a compiled step, such as in
    `build`, without a writer and without a step. They cost nothing in the steps that are not recorded. Of a scalar the
    mean over micro-batches and towers is recorded, of the others the first. Asynchronous towers and several workers
    record what a step returns only.

    Args:
        prefix: what the scalars' names start with.
    """

    def __init__(self, *, prefix: str = "trn") -> None:
        self.prefix = prefix

    def setup(self) -> None:
        self.trainer.monitors.announce(self, self.prefix, None)

    def watches(self) -> Collection[str] | None:
        return ()

    def trigger(self) -> None:
        self.trainer.monitors.put_scalars(self.trainer.outputs, self.prefix)
        scalars: dict[str, list[float]] = {}
        for event in self.trainer.summary_events:
            numbers = {
                value.tag: as_number(value.tag, found)
                for value in event.summary.value
                if (found := scalar_in(value)) is not None
            }
            for name, number in numbers.items():
                scalars.setdefault(name, []).append(number)  # one for each micro-batch
            if not numbers:
                self.trainer.monitors.put_summary(event.summary, self.prefix)
        self.trainer.monitors.put_scalars({name: fmean(found) for name, found in scalars.items()}, self.prefix)


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
