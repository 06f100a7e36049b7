"""Going on from a checkpoint: everything comes back, and the run says what changed since."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event

from prototrain.checkpoint import Checkpoint
from prototrain.checkpoint.json_codec import decode
from prototrain.checkpoint.random import random_state_kept, set_random_state
from prototrain.checkpoint.state import StateEntries, lost_in, restore_errors
from prototrain.errors import CheckpointError
from prototrain.experiment.facts import changes
from prototrain.system.waiting import announcing
from prototrain.trainers.finite import FiniteRun
from prototrain.trainers.past import check_past
from prototrain.trainers.saving import Saving

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


class Resume:
    """Restores the checkpoint that a run resumes from.

    Args:
        trainer: whose state is restored.
        saving: knows its checkpoints.
        finite: looks for what is not finite in them.

    Attributes:
        checkpoint: that the run goes on from, or None.
        changes: what is not as it was when the checkpoint was written, in words.
        began_at: the number of completed steps at its start.
    """

    def __init__(self, trainer: Trainer, saving: Saving, finite: FiniteRun) -> None:
        self._trainer = trainer
        self._saving = saving
        self._finite = finite
        self.checkpoint: Checkpoint | None = None
        self.changes: list[str] = []
        self.began_at = 0
        self._is_anew = False
        self._broken: list[Path] = []  # checkpoints to set aside once the run may go on
        self._notes: list[str] = []  # how the place in the data is come back to, and what could not be saved

    def restore(self, resume: bool) -> None:
        """Restore the newest checkpoint; without `resume`, move older ones out of the way.

        A trainer that is already ahead of its newest checkpoint, because `train` is called a second time, goes on from
        where it is; after a step that was left half-done, from that checkpoint.

        Raises:
            CheckpointError: the checkpoints are damaged or do not fit, or there is none to go back to, or no longer
                any; or something in the trainer's state could not be saved.
        """
        self.checkpoint, self.changes, self._notes = None, [], []
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
        self._is_anew, self._broken = not resume, []
        if not resume:
            return
        checkpoints = self._saving.checkpoints
        with announcing("checking the newest checkpoint", trainer.log):
            newest = checkpoints.newest(self._finite.check, broken=self._broken)
        trainer.stop.check()
        if newest is None and trainer.global_step == 0:
            check_past(trainer)
        if newest is None or (newest.step < trainer.global_step and trainer.state_is_sound):
            return
        with announcing(f"restoring the checkpoint of step {newest.step}", trainer.log):
            self._load(newest)
        self.checkpoint, self.began_at = newest, trainer.global_step
        trainer.stop.check()

    def tidy(self) -> None:
        """Once the run may go on, delete what unfinished saves have left, and move what it does not go on from."""
        trainer = self._trainer
        if trainer.experiment is None or not trainer.is_chief:
            return
        self._saving.checkpoints.sweep()
        for path in self._broken:
            self._saving.checkpoints.set_aside(path)
        old = self._saving.checkpoints.set_all_aside() if self._is_anew else None
        if old is not None:
            trainer.log(f"resume=False: the checkpoints of the earlier run are kept in {old}")

    def _load(self, checkpoint: Checkpoint) -> None:
        trainer, meta = self._trainer, checkpoint.meta
        step, is_whole = trainer.global_step, trainer.step_is_whole
        epoch_num, outputs = trainer.epoch_num, trainer.outputs
        try:
            with (
                restore_errors(f"checkpoint {checkpoint.path}"),
                trainer.fitted_to(meta["variables"], meta["facts"]),
                StateEntries(trainer.state).restoring(checkpoint),
            ):
                # An epoch's last step belongs to that epoch.
                epoch_num_there = max(checkpoint.step - 1, 0) // trainer.steps_per_epoch + 1
                trainer.go_to(checkpoint.step, epoch_num=epoch_num_there)
                with restore_errors("the callbacks' state"):
                    states = decode(meta["callbacks"])
                trainer.callbacks.load_state_dict(states)
                with restore_errors("the scalars' history"):
                    trainer.monitors.load_state_dict(meta["monitors"])
                with restore_errors("the last step's outputs"):
                    trainer.go_to(checkpoint.step, outputs=dict(decode(meta["outputs"])))
                with restore_errors("what was seen of the last step"):
                    seen = decode(meta["seen"])
                    trainer.watched = dict(seen.get("watched", {}))
                    trainer.summary_events = [_event(text) for text in seen.get("summaries", [])]
                self._notes = [*trainer._after_restore(), *lost_in(meta["values"])]
                with restore_errors("the record of versions and settings"):
                    self.changes = changes(dict(meta["facts"]), trainer.facts())
                with restore_errors("the state of the random generators"):
                    set_random_state(meta["random"])
        except BaseException:
            trainer.go_to(step, epoch_num=epoch_num, outputs=outputs, is_whole=is_whole)
            raise

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Put back what is changed meanwhile of what the checkpoint has brought: it was changed so before it was
        saved."""
        with random_state_kept(), StateEntries(self._trainer.state).kept():
            yield

    def line(self) -> str:
        """The line "start": the step of the resume, the data position, and what has changed since."""
        if self.checkpoint is None:
            return f"goes on from step {self.began_at}" if self.began_at else "fresh"
        changed = [f"changed: {', '.join(self.changes)}"] if self.changes else []
        return "; ".join([f"resumed at step {self.checkpoint.step}", *self._notes, *changed])


def _event(text: bytes) -> Event:
    try:
        return Event.FromString(text)
    except DecodeError as error:
        raise ValueError("no TensorBoard event") from error
