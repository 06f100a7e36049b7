"""Saving beside the training: a trainer's whole state is taken hold of between two steps, and a thread writes it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prototrain.checkpoint import Checkpoints, Snapshot
from prototrain.checkpoint.json_codec import plain
from prototrain.checkpoint.random import random_state
from prototrain.checkpoint.state import StateEntries, late_words
from prototrain.errors import CheckpointError, NonFiniteError
from prototrain.trainers.finite import FiniteRun

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


class Saving:
    """Writes a trainer's checkpoints, one at a time.

    Args:
        trainer: whose state is saved.
        finite: looks for what is not finite in it, before it gets a name that a resume takes.

    Attributes:
        registered: the variables that were in the trainer's state when the run began, by name.
    """

    def __init__(self, trainer: Trainer, finite: FiniteRun) -> None:
        self._trainer = trainer
        self._finite = finite
        self._protected: dict[str, set[int]] = {}
        self.registered: Collection[str] = ()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Begin with a thread of this process's own; in a forked child, the parent's is not there."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._writing: Future[Path] | None = None

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of the trainer's experiment."""
        experiment = self._trainer.require_experiment("saving")
        return Checkpoints(experiment.checkpoints, self._trainer.log, run_id=experiment.run_id)

    def protect(self, who: str, steps: Collection[int]) -> None:
        """Keep the checkpoints of some steps from being deleted.

        Args:
            who: a callback's state key, for example; what it has named before is forgotten.
            steps: must stay.
        """
        self._protected[who] = set(steps)

    @property
    def protected_steps(self) -> set[int]:
        """The steps whose checkpoints must stay."""
        return set().union(*self._protected.values())

    def forget(self) -> None:
        """Wait for what is being written; then nothing was written, and nothing is protected."""
        self.wait()
        self._writing = None
        self._protected.clear()

    def start(self, written: Callable[[], None], *, gives_way: bool) -> Callable[[], Path]:
        """See `Trainer.start_save`.

        Args:
            written: called by the writing thread when the files are whole.
            gives_way: as there.
        """
        self.wait()
        trainer = self._trainer
        trainer.monitors.flush()
        finish = self.checkpoints.start(self._snapshot(gives_way), aside=not trainer.state_is_sound)

        def write() -> Path:
            path = finish()
            written()
            return path

        self._writing = self._writer.submit(write)
        return functools.partial(self._result_of, self._writing)

    def check(self) -> None:
        """Raise a `NonFiniteError` if what was to be saved last is not finite."""
        writing = self._writing
        if writing is not None and writing.done() and isinstance(writing.exception(), NonFiniteError):
            self._result_of(writing)

    def _result_of(self, writing: Future[Path]) -> Path:
        try:
            return writing.result()
        except NonFiniteError as error:
            self._trainer.reject_state()
            raise NonFiniteError(f"{error}; {self.resume_point()}") from None

    def wait(self) -> None:
        """Wait until nothing is being written any more; whoever began it hears of a failure."""
        wait([] if self._writing is None else [self._writing])

    def resume_point(self) -> str:
        """Where a resume would go on from, in words."""
        if self._trainer.experiment is None:
            return "there is no experiment directory to resume from"
        self.wait()
        steps = self.checkpoints.steps()
        found = f"the checkpoint of step {steps[-1]}" if steps else "the start: there is no checkpoint yet"
        return f"a resume goes on from {found}"

    def save_as_asked(self) -> None:
        """Write a checkpoint because a signal has asked for it, and say so; of several workers, the chief does."""
        trainer = self._trainer
        if not trainer.is_chief:
            return
        if trainer.experiment is None:
            trainer.log("nothing was saved: the trainer has no experiment directory; continuing")
            return
        try:
            path = trainer.save()
        except CheckpointError as error:
            trainer.log(f"WARNING: {error}; training goes on")
        else:
            trainer.log(f"saved step {trainer.global_step} to {path}; continuing")

    def _snapshot(self, gives_way: bool) -> Snapshot:
        trainer = self._trainer
        entries = StateEntries(trainer.state)
        late = entries.late(self.registered)
        if late:
            trainer.session.say_once(f"WARNING: {late_words(late)}, or this run cannot be resumed")
        meta = {
            "run_id": trainer.experiment.run_id if trainer.experiment else None,
            "values": entries.values(),
            "late": late,
            "callbacks": plain(trainer.callbacks.state_dict(), "the callbacks' state"),
            "monitors": trainer.monitors.state_dict(),
            # Callbacks that a stop has kept from this step read them after the resume.
            "outputs": plain(trainer.outputs, "what run_step() returned"),
            "seen": plain(_seen(trainer), "what was watched") if trainer.callbacks.has_still_to_see else {},
            "random": random_state(),
            "facts": trainer.facts(),
        }
        check = self._finite.checking()
        return Snapshot(trainer.global_step, entries.variables, entries.saveables, meta, check, gives_way)


def _seen(trainer: Trainer) -> dict[str, Any]:
    """What the last step has shown besides its scalars; `Resume` hands it out again."""
    events = [event.SerializeToString() for event in trainer.summary_events]
    return {"watched": dict(trainer.watched), "summaries": events}
