"""Going on from a checkpoint: everything comes back, and the run says how exactly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event

from prototrain.checkpoint import Checkpoint
from prototrain.checkpoint.global_random import random_state, random_state_kept, set_random_state
from prototrain.checkpoint.state import StateEntries, taking
from prototrain.checkpoint.values import decode, lost_in
from prototrain.errors import CheckpointError
from prototrain.experiment.changes import changes_since
from prototrain.system.waiting import announcing
from prototrain.trainers.finite import FiniteRun
from prototrain.trainers.past import check_past
from prototrain.trainers.saving import Saving

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


class Resume:
    """Where a run goes on from, and how exactly.

    Args:
        trainer: whose state is restored.
        saving: knows its checkpoints.
        finite: looks for what is not finite in them.

    Attributes:
        checkpoint: that the run goes on from, or None.
        inexact: why it does not go on to the bit, in words.
        began_at: the number of completed steps at its start.
    """

    def __init__(self, trainer: Trainer, saving: Saving, finite: FiniteRun) -> None:
        self._trainer = trainer
        self._saving = saving
        self._finite = finite
        self.checkpoint: Checkpoint | None = None
        self.inexact: list[str] = []
        self.began_at = 0
        self._known: list[str] = []  # of what was said
        self._lasting: list[str] = []  # of that, what is true of the program
        self._foretold: list[str] = []  # what an earlier part of the run has seen of its steps

    def restore(self, resume: bool) -> None:
        """Restore the newest checkpoint; without `resume`, move older ones out of the way.

        A trainer that is already ahead of its newest checkpoint, because `train` is called a second time, goes on from
        where it is; after a step that was left half-done, from that checkpoint.

        Raises:
            CheckpointError: the checkpoints are damaged or do not fit, or there is none to go back to, or no longer
                any; or something in the trainer's state could not be saved.
        """
        self.checkpoint, self.inexact = None, []
        self._known, self._lasting, self._foretold = [], [], []
        trainer = self._trainer
        self.began_at = trainer.global_step
        if not trainer.state_is_sound and (
            trainer.experiment is None or not resume or not self._saving.checkpoints.steps()
        ):
            raise CheckpointError(
                f"step {trainer.global_step + 1} failed half-done, and there is no checkpoint to go back to; "
                "make a new trainer"
            )
        self._finite.begin()
        if trainer.experiment is None:
            return
        entries = StateEntries(trainer.state)
        entries.check()
        self._saving.registered = entries.variables.keys()
        checkpoints = self._saving.checkpoints
        if trainer.is_chief:
            checkpoints.sweep()
        if not resume and trainer.is_chief:
            old = checkpoints.set_all_aside()
            if old is not None:
                trainer.log(f"resume=False: the checkpoints of the earlier run are kept in {old}")
        if not resume:
            return
        with announcing("checking the newest checkpoint", trainer.log):
            newest = checkpoints.newest(self._finite.check)
        trainer.stop.check()
        if newest is None and trainer.global_step == 0:
            check_past(trainer)
        if newest is None or (newest.step < trainer.global_step and trainer.state_is_sound):
            return
        with announcing(f"restoring the checkpoint of step {newest.step}", trainer.log):
            self._load(newest)
        self.checkpoint, self.began_at = newest, trainer.global_step
        trainer.stop.check()

    def _load(self, checkpoint: Checkpoint) -> None:
        trainer, meta = self._trainer, checkpoint.meta

        def beside() -> None:
            """What may not fit although every file is whole; the variables come behind it."""
            # An epoch's last step belongs to that epoch.
            epoch_num = max(checkpoint.step - 1, 0) // trainer.steps_per_epoch + 1
            trainer.go_to(checkpoint.step, epoch_num=epoch_num)
            self.inexact = lost_in(meta["values"])
            with taking("the callbacks' state"):
                states = decode(meta["callbacks"])
            self.inexact += trainer.callbacks.load_state_dict(states)
            with taking("the scalars' history"):
                trainer.monitors.load_state_dict(meta["monitors"])
            with taking("the last step's outputs"):
                trainer.go_to(checkpoint.step, outputs=dict(decode(meta["outputs"])))
            with taking("what was seen of the last step"):
                seen = decode(meta.get("seen", {}))  # which earlier versions did not save
                trainer.watched = dict(seen.get("watched", {}))
                trainer.summary_events = [_event(text) for text in seen.get("summaries", [])]
            self.inexact += trainer.resume_caveats()
            with taking("the record of versions and settings"):
                self.inexact += changes_since(dict(meta["provenance"]), trainer.provenance())
            self._foretold = [reason for reason in meta.get("caveats", []) if isinstance(reason, str)]
            self.inexact += [reason for reason in self._foretold if reason not in self.inexact]
            with taking("the state of the random generators"):
                set_random_state(meta["random"])

        step, is_whole = trainer.global_step, trainer.step_is_whole
        epoch_num, outputs = trainer.epoch_num, trainer.outputs
        try:
            with taking(f"checkpoint {checkpoint.path}"), trainer.fitted_to(meta["variables"], meta["provenance"]):
                moved = StateEntries(trainer.state).restore(checkpoint, beside=beside)
            self.inexact += moved
        except BaseException:
            trainer.go_to(step, epoch_num=epoch_num, outputs=outputs, is_whole=is_whole)
            raise

    @contextmanager
    def preparing(self, what: str) -> Iterator[None]:
        """Put back what is changed meanwhile of what the checkpoint has brought: it was changed so before it was saved.

        Args:
            what: is done, for the line that says that it has drawn random numbers, which are others now.
        """
        before = random_state()
        with random_state_kept(), StateEntries(self._trainer.state).kept():
            yield
            if random_state() != before:
                said = f"{what}, which has run again amid its epoch, draws random numbers; keep them by a state_dict"
                self._trainer.session.weaken([said])

    @property
    def caveats(self) -> list[str]:
        """Why a run that goes on from this one will not be exact, as far as only its steps have shown it."""
        has_looked = self._trainer.global_step > self.began_at
        return list(dict.fromkeys([*self._lasting, *([] if has_looked else self._foretold)]))

    def weaken(self, reasons: list[str], *, lasts: bool = True) -> bool:
        """Take note of why a resume is not exact that shows only while the run goes on, and say so; each once.

        Args:
            reasons: in words.
            lasts: whether they are as true of whatever goes on from here.

        Returns:
            whether `line` has changed.
        """
        new = [reason for reason in reasons if reason not in self._known]
        if not new:  # as at nearly every save
            return False
        said = self._trainer.resume_caveats()  # by the tables at the start
        new = [reason for reason in new if reason not in said]
        self._known += new
        self._lasting += new if lasts else []
        if not new:
            return False
        if self.checkpoint is None:
            self._say_of_others(new)
            return False
        unsaid = [reason for reason in new if reason not in self.inexact]
        self.inexact += unsaid
        if unsaid:
            self._trainer.log(f"WARNING: {self.line()}")
        return bool(unsaid)

    def weaken_others(self, reason: str) -> None:
        """Take note of why a run that goes on from here is not exact, whatever this one is, and say so."""
        if reason not in self._lasting:
            self._lasting.append(reason)
            if reason not in self.inexact:
                self._say_of_others([reason])

    def _say_of_others(self, reasons: list[str]) -> None:
        self._trainer.log(f"a run that goes on from this one will not be bit-exact, because {'; '.join(reasons)}")

    def line(self) -> str:
        """Whether, from where and how exactly this run goes on, in one line."""
        if self.checkpoint is None:
            return f"goes on from step {self.began_at}" if self.began_at else "fresh"
        if not self.inexact:
            return f"resumed at step {self.checkpoint.step}, exact"
        return f"resumed at step {self.checkpoint.step}, not bit-exact, because {'; '.join(self.inexact)}"


def _event(text: bytes) -> Event:
    try:
        return Event.FromString(text)
    except DecodeError as error:
        raise ValueError("no TensorBoard event") from error
