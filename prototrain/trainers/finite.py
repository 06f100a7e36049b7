"""A run with `StopOnNaN` neither saves a state that is not finite nor goes on from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from prototrain.checkpoint import Checkpoint
from prototrain.checkpoint.finite import FiniteState, in_words
from prototrain.checkpoint.state import OF_CALLBACKS, StateEntries
from prototrain.errors import CheckpointError, NonFiniteError

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_CURE = "what is meant to be so, StopOnNaN(ignore=...) leaves alone"


class FiniteRun:
    """Looks at a trainer's variables, those of its optimizers and callbacks among them, while `check_finite` is set.

    Args:
        trainer: whose state it is.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._state = FiniteState()

    def forget(self) -> None:
        """A run begins, whose `StopOnNaN` has not said yet what is to be left alone."""
        self._state.ignored = []

    def ignore(self, pattern: str) -> None:
        """Leave variables alone whose names match a regular expression."""
        self._state.ignored.append(pattern)

    def begin(self) -> None:
        """Take note of what is not finite before anything is restored, and say so; that is left alone from now on."""
        if self._trainer.check_finite:
            found = self._state.begin(StateEntries(self._trainer.state).variables)
            if found:
                self._trainer.log(f"StopOnNaN: {in_words(found)} from the start and left alone")

    def find(self) -> str | None:
        """What in the trainer's state is not finite and should be, in words."""
        found = self._state.find(StateEntries(self._trainer.state).variables)
        return in_words(found) if found else None

    def checking(self) -> Callable[[Mapping[str, Any]], None] | None:
        """What a snapshot of the present step is checked with, in any thread; None if it need not be.

        It raises a NonFiniteError that names what is not finite.
        """
        step = self._trainer.global_step
        if not self._trainer.check_finite or not self._trainer.state_is_sound:
            return None

        def check(values: Mapping[str, Any]) -> None:
            found = self._state.find(values)
            if found:
                raise NonFiniteError(f"step {step} is not saved, since {in_words(found)}")

        return check

    def check(self, checkpoint: Checkpoint) -> None:
        """Check a checkpoint that is about to be restored, as far as it will be.

        Raises:
            CheckpointError: it names what is not finite.
        """
        if not self._trainer.check_finite or not checkpoint.meta["variables"]:
            return
        mine = StateEntries(self._trainer.state).variables
        saved = checkpoint.tensors().items()
        found = self._state.find({name: v for name, v in saved if name in mine or not name.startswith(OF_CALLBACKS)})
        if found:
            raise CheckpointError(f"checkpoint {checkpoint.path} is not gone on from: {in_words(found)}; {_CURE}")
