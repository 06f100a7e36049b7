"""Validation during training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from numbers import Integral
from typing import Any

from prototrain.callbacks.base import Callback
from prototrain.errors import CallbackError, DataError
from prototrain.model.evaluation import OR_BATCHES, require_end
from prototrain.system.terminal import announcing, did_you_mean

Evaluate = Callable[[str, int], Mapping[str, float] | None]


class Validation(Callback):
    """Evaluates the model on a dataset and records the averages of its scalars as ``vld/...``.

        Validation().every(steps=100)

    Batches are weighted by the model's "loss_weight" if present, and by their number of examples otherwise. Each
    evaluation uses the same batches, from the start of the dataset, and leaves the seeds of random layers as they are.
    A stop request interrupts it, and the resumed run repeats it. Before the first step of a run, the evaluation is
    tested on two batches without side effects.

    Args:
        dataset: the name of one of the model's datasets. Defaults to "vld"; a model without "vld" is not validated.
        batches: the number of batches to use; 0 for the whole dataset.
        prefix: prefix of the scalars' names. Defaults to the dataset's name.
        evaluate: takes the dataset's name and the number of batches; returns the scalars by name, or None if it was
            interrupted. Defaults to the trainer's `evaluate`.
        rehearse: whether to test the evaluation before the first step. Ignored if `evaluate` is given.

    Raises:
        CallbackError: at setup, if `batches` is not a non-negative integer, or the trainer cannot evaluate and
            `evaluate` is not given.
        DataError: at setup, if the named dataset is missing, or is infinite and `batches` is 0.
    """

    def __init__(
        self,
        dataset: str | None = None,
        *,
        batches: int = 0,
        prefix: str | None = None,
        evaluate: Evaluate | None = None,
        rehearse: bool = True,
    ) -> None:
        self._is_named = dataset is not None
        self.dataset = "vld" if dataset is None else dataset
        self.batches = batches
        self.prefix = self.dataset if prefix is None else prefix
        self._evaluate = evaluate
        self._rehearse = rehearse and evaluate is None

    def setup(self) -> None:
        trainer, self._is_off = self.trainer, False
        if self._evaluate is None and not trainer.can_evaluate:
            kind = type(trainer).__name__
            raise CallbackError(f"Validation: {kind} has no evaluate(); define it, or give Validation(evaluate=...)")
        if self._evaluate is not None or trainer.datasets is None:
            return
        if self.dataset in trainer.datasets:
            check_batches(self.name, self.dataset, trainer.datasets[self.dataset], self.batches)
            return
        text = no_such_dataset(self.dataset, trainer.datasets)
        if self._is_named:
            raise DataError(f"{self.name}: {text}")
        self._is_off = True
        trainer.log(f"no validation: the model's {text}")

    def check_run(self) -> None:
        trainer = self.trainer
        if self._rehearse and not self._is_off and trainer.global_step < trainer.total_steps:
            # Outside of `evaluating`, since this is not an evaluation for other callbacks.
            with announcing(f"trying out the validation on {self.dataset!r}", trainer.log):
                trainer._rehearse(self.dataset, self.batches)

    def trigger(self) -> None:
        if self._is_off:
            return
        evaluate = self._evaluate or self.trainer.evaluate
        with self.trainer.evaluating():
            scalars = evaluate(self.dataset, self.batches)
        if scalars is None:
            self.trainer.stop.check()
            raise CallbackError(f"Validation: evaluate({self.dataset!r}, ...) returned None, not scalars by name")
        self.trainer.monitors.put_scalars(scalars, self.prefix)


def check_batches(who: str, name: str, dataset: Any, batches: object) -> None:
    """Raise CallbackError unless `batches` is a count, or DataError if it is 0 and the dataset is infinite."""
    if not isinstance(batches, Integral) or isinstance(batches, bool) or batches < 0:
        raise CallbackError(f"{who}: batches must be a whole number, 0 for all, got {batches!r}")
    if not batches:
        require_end(name, dataset, OR_BATCHES)


def no_such_dataset(name: str, known: Collection[str]) -> str:
    """Return an error message with the closest match and all known names."""
    guess = did_you_mean(name, known) or ";"
    return f"datasets() gives no {name!r}{guess} it gives {', '.join(known) or 'none'}"
