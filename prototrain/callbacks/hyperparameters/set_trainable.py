"""Freezing and unfreezing of weights during training."""

from __future__ import annotations

from numbers import Integral
from typing import Self

from prototrain.callbacks.base import Callback, innermost
from prototrain.errors import CallbackError


class SetTrainable(Callback):
    """Freezes or unfreezes weights at a given step or epoch.

        SetTrainable("backbone", True).at(step=1000)
        SetTrainable("backbone/block[12]/.*", False).at(epoch=3)

    Sets `trainable` of the matching layers and variables, as in Keras: a frozen batch normalization uses its moving
    statistics and does not update them. The step is retraced once, and the optimizer keeps its state: moments of
    unfrozen weights start at zero, and moments of frozen weights stay in the checkpoint. A resumed run trains the
    weights that are trainable at its step. After the run, `trainable` has its original values.

    Args:
        regex: a regular expression for full names of layers, such as ``backbone/conv1``, or of variables, such as
            ``backbone/conv1/kernel``. A layer includes its sublayers.
        trainable: whether to train the weights.

    Raises:
        CallbackError: at setup, if no name matches, `at` was not called, several `SetTrainable` callbacks are not in
            the order of their steps, or the trainer does not support freezing.
    """

    chief_only = False  # all workers must train the same weights
    at_end = False

    def __init__(self, regex: str, trainable: bool) -> None:
        self.regex = regex
        self.trainable = trainable
        self._step = self._epoch = -1

    def at(self, *, step: int | None = None, epoch: int | None = None) -> Self:
        """Set the number of completed steps or epochs after which the weights change; 0 is the start of training."""
        given = epoch if step is None else step
        if (step is None) == (epoch is None) or not isinstance(given, Integral) or given < 0:
            raise CallbackError(f"{self!r}: say .at(step=N) or .at(epoch=N), N at least 0; got {step=}, {epoch=}")
        self._step, self._epoch = int(step or 0), int(epoch or 0)
        return self

    @property
    def step(self) -> int:
        """The number of completed steps after which the weights change."""
        return self._step + self._epoch * (self.trainer.steps_per_epoch if self._epoch else 1)

    def setup(self) -> None:
        if self._step < 0:
            raise CallbackError(f"{self!r}: say when, for example .at(step=1000)")
        mine = [callback for callback in map(innermost, self.trainer.callbacks) if isinstance(callback, SetTrainable)]
        for earlier in mine[: mine.index(self)]:
            if earlier.step > self.step:
                raise CallbackError(f"{earlier!r} comes before {self!r}; list them in the order of their steps")
        if not hasattr(self.trainer, "_weights_to_change"):
            raise CallbackError(f"{self!r}: {type(self.trainer).__name__} has no layers to freeze or unfreeze")
        self.trainer._weights_to_change(repr(self), self.regex, self.trainable)

    def before_train(self) -> None:
        if self.step <= self.trainer.global_step:
            self.trigger_step()

    def next_step(self, step: int) -> int | None:
        return self.step if step < self.step else None

    def trigger_step(self) -> None:
        before, after = self.trainer._set_trainable(self.regex, self.trainable)  # type: ignore[attr-defined]
        step = self.trainer.global_step + 1
        self.trainer.log(f"{self!r}: {after} variables are trained from step {step} on (before: {before})")

    def __repr__(self) -> str:
        return f"SetTrainable({self.regex!r}, {self.trainable})"
