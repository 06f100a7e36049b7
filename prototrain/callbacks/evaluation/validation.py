"""Evaluating on held-out data while training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral
from typing import Any

from prototrain.callbacks.base import Callback
from prototrain.errors import CallbackError, DataError
from prototrain.model.evaluation import OR_BATCHES, require_end
from prototrain.system.waiting import announcing
from prototrain.system.wording import did_you_mean

Evaluate = Callable[[str, int], Mapping[str, float] | None]


class Validation(Callback):
    """Averages the model's scalars over a dataset, weighted by batch size, and records them as ``vld/...``.

        Validation().every(steps=100)

    Each evaluation uses the same batches, from the start of the dataset. A stop request ends it early; the resumed run
    repeats it. Before the first step of a run it is tried out on two batches, without any effect, so that a mistake
    shows at once.

    Args:
        dataset: its name among the model's datasets; "vld" if None, and then a model without it is not validated.
        batches: how many batches; 0 for the whole dataset.
        prefix: what the scalars' names start with; the dataset's name if None.
        evaluate: called with the dataset's name and the number of batches, returns the scalars by name, or None if it
            was interrupted; by default the trainer's own `evaluate`.
        rehearse: whether it is tried out before the first step; not if `evaluate` is given.

    Raises:
        CallbackError: at setup, if `batches` is not a whole number from 0.
        DataError: at setup, if a dataset that is named is missing, or all of one without an end is asked for.
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
            raise CallbackError(
                f"Validation needs a trainer with evaluate(dataset, batches), which {type(trainer).__name__} has not; "
                "define it, or give Validation(evaluate=...)"
            )
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
        if self._is_off:
            return
        names: Iterable[str] = ["*"]
        if self._rehearse and trainer.global_step < trainer.total_steps:
            # Outside of `evaluating`: to other callbacks this is not an evaluation.
            with announcing(f"trying out the validation on {self.dataset!r}", trainer.log):
                names = trainer._rehearse(self.dataset, self.batches)
            trainer.stop.check()
        trainer.monitors.registry.announce(self, self.prefix, names)

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
    """Check that an evaluation can read so many batches of a dataset, or all of it if 0.

    Raises:
        CallbackError: it is not a whole number from 0.
        DataError: all of a dataset without an end is asked for.
    """
    if not isinstance(batches, Integral) or isinstance(batches, bool) or batches < 0:
        raise CallbackError(f"{who}: batches must be a whole number, 0 for all, got {batches!r}")
    if not batches:
        require_end(name, dataset, OR_BATCHES)


def no_such_dataset(name: str, known: Collection[str]) -> str:
    """An error text with the nearest name and all known ones."""
    guess = did_you_mean(name, known) or ";"
    return f"datasets() gives no {name!r}{guess} it gives {', '.join(known) or 'none'}"
