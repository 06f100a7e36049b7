"""Evaluating on held-out data while training."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from prototrain.callbacks.base import Callback, Priority
from prototrain.errors import CallbackError, DataError
from prototrain.model.evaluation import OR_BATCHES, require_end
from prototrain.system.waiting import announcing

Evaluate = Callable[[str, int], Mapping[str, float] | None]


def check_batches(who: str, batches: object) -> None:
    """Check a number of batches.

    Raises:
        CallbackError: it is not a whole number from 0.
    """
    if not isinstance(batches, int | np.integer) or isinstance(batches, bool) or not 0 <= batches <= sys.maxsize:
        raise CallbackError(f"{who}: batches must be a whole number, 0 for all, got {batches!r}")


def no_such_dataset(name: str, known: Iterable[str]) -> str:
    """Return an error text for an unknown dataset: the nearest name, and the known ones."""
    there = list(known)
    near = difflib.get_close_matches(name, there, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return f"datasets() gives no {name!r}; {meant}it gives {', '.join(there) or 'none'}"


class Validation(Callback):
    """Averages the model's scalars over a dataset, weighted by batch size, and records them as ``vld/...``.

    Each evaluation uses the same batches, from the start of the dataset, so values can be compared and a resumed run
    repeats them. A stop request ends the evaluation early; the resumed run repeats it.

    Without `every` it runs at the end of each epoch. Before the first step of a run it is tried out on two batches,
    without any effect, so that a mistake shows at once. An `evaluate` that the user gives is not tried out.

    Args:
        dataset: its name among the model's datasets; "vld" if None, and then a model without it is not validated.
        batches: how many batches; 0 for the whole dataset.
        prefix: what the scalars' names start with; the dataset's name if None.
        evaluate: called with the dataset's name and the number of batches, returns the scalars by name, or None if it
            was interrupted; by default the trainer's own `evaluate`.
        rehearse: whether it is tried out before the first step.

    Raises:
        CallbackError: `batches` is not a whole number from 0.
        DataError: at setup, if a dataset that is named is not there, or all of one without an end is asked for.
    """

    priority = Priority.EVALUATE

    def __init__(
        self,
        dataset: str | None = None,
        *,
        batches: int = 0,
        prefix: str | None = None,
        evaluate: Evaluate | None = None,
        rehearse: bool = True,
    ) -> None:
        check_batches(self.name, batches)
        self._is_named = dataset is not None
        self.dataset = "vld" if dataset is None else dataset
        self.batches = batches
        self.prefix = self.dataset if prefix is None else prefix
        self._evaluate = evaluate
        self._rehearse = rehearse and evaluate is None
        self._off = False

    def setup(self) -> None:
        if self._evaluate is None and not self.trainer.can_evaluate:
            raise CallbackError(
                f"Validation needs a trainer with evaluate(dataset, batches), which {type(self.trainer).__name__} has "
                "not; define it, or give Validation(evaluate=...)"
            )
        # The user's `evaluate` knows its data.
        known = self.trainer.datasets if self._evaluate is None else None
        self._off = known is not None and self.dataset not in known
        if self._off:
            said = no_such_dataset(self.dataset, known or ())
            if self._is_named:
                raise DataError(f"{self.name}({self.dataset!r}): {said}")
            self.trainer.log(f"no validation: the model's {said}")
        elif known is not None and not self.batches:
            require_end(self.dataset, known[self.dataset], OR_BATCHES)

    def check_run(self) -> None:
        trainer = self.trainer
        if self._off:
            return
        names: Iterable[str] = ["*"]
        if self._rehearse and trainer.global_step < trainer.total_steps:
            # Outside of the evaluation's scopes: to other callbacks this is not an evaluation.
            with announcing(f"trying out the validation on {self.dataset!r}", trainer.log):
                names = trainer._rehearse(self.dataset, self.batches)
            trainer.stop.check()
        trainer.monitors.announce(self, self.prefix, names)

    def trigger(self) -> None:
        if self._off:
            return
        evaluate = self._evaluate or self.trainer.evaluate
        with self.trainer.evaluating():
            outcome = evaluate(self.dataset, self.batches)
        if outcome is None:
            self.trainer.stop.check()
            raise CallbackError(f"Validation: evaluate({self.dataset!r}, ...) returned None, not scalars by name")
        self.trainer.monitors.put_scalars(outcome, self.prefix)
