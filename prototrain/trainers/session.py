"""One `train()` in its directory: it is taken, what is said is kept, checkpoints are written, a run is resumed."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tqdm import tqdm

from prototrain.checkpoint import Checkpoints
from prototrain.errors import CheckpointError, ExperimentError, StorageError
from prototrain.experiment import Experiment
from prototrain.experiment.environment import versions
from prototrain.experiment.facts import Facts, config_facts, file_digests
from prototrain.experiment.record import Outcome, RunRecord
from prototrain.experiment.remote import Remote
from prototrain.system.contained import open_file
from prototrain.system.forks import end_child, tell_of_forks
from prototrain.system.terminal import printable
from prototrain.system.tracebacks import in_one_line
from prototrain.system.waiting import announcing
from prototrain.trainers.finite import FiniteRun
from prototrain.trainers.resuming import Resume
from prototrain.trainers.saving import Saving

if TYPE_CHECKING:
    from prototrain.config import Config
    from prototrain.trainers.base import Trainer


class Session:
    """Connects a trainer with its experiment directory while a run lasts.

    Args:
        trainer: the trainer whose state is saved and restored.

    Attributes:
        finite: looks for what is not finite in the state, if `StopOnNaN` is in the list.
        saving: writes its checkpoints.
        resume: restores the checkpoint that the run resumes from.
        stopped_by: why the run ends before its last step, if it does.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._sources: dict[str, str] = {}  # digests of the files that copies are kept of
        self._said: set[str] = set()
        self.stopped_by: str | None = None
        self._record: RunRecord | None = None
        self._outcome = Outcome("running")
        self._has_failed_to_upload = False
        self._is_accepted = False  # nothing in the directory changes before
        self._unwritten: list[str] = []  # what was said until then
        self.finite = FiniteRun(trainer)
        self.saving = Saving(trainer, self.finite)
        self.resume = Resume(trainer, self.saving, self.finite)
        self._looked_at = 0.0
        self._is_forked = self._has_begun = False
        tell_of_forks(self)

    def after_fork(self) -> None:
        """Leave the directory to the parent, in a child that comes out of the run by `sys.exit`, for example."""
        self._is_forked, self._record = True, None
        self.saving.begin_anew()

    @contextmanager
    def begun_afresh(self) -> Iterator[None]:
        """Delete everything in the directory; of several workers, the chief does. Where this session is not entered
        inside, because that fails before, let the directory go.

        Raises:
            ExperimentError: this trainer has made steps already, the directory is not an experiment's, or another run
                has it.
        """
        trainer, experiment = self._trainer, self._trainer.experiment
        if trainer.global_step:
            raise ExperimentError(
                f"train(fresh=True): this trainer has made {trainer.global_step} steps already; make a new one"
            )
        if experiment is None or not trainer.is_chief:
            yield
            return
        self._has_begun = False
        try:
            with announcing(f"deleting what is in {experiment}", trainer.log):
                experiment.delete()
            yield
        finally:
            if not self._has_begun:
                experiment.unlock(trainer.log)

    def __enter__(self) -> Session:
        self._sources = file_digests(self._trainer.sources())
        self._is_forked, self._has_begun, self._is_accepted = False, True, False
        self._outcome, self.stopped_by = Outcome("running"), None
        self.finite.forget()
        self.saving.forget()
        experiment = self._trainer.experiment
        if experiment is not None and self._trainer.is_chief:
            stale = experiment.lock()
            if stale:
                self._trainer.log(stale)
        return self

    def accept(self) -> None:
        """The run may begin or go on: from here on it writes into its directory, beginning with what it has said."""
        experiment = self._trainer.experiment
        if experiment is not None and self._trainer.is_chief:
            self._write_start(experiment)
            changes = None if (config := self.config()) is None else config.changes()
            facts = self._trainer.attempt_facts()
            self._record = RunRecord(experiment.record, self._trainer.log, changes=changes, **facts)
        self._is_accepted = True
        said, self._unwritten = self._unwritten, []
        for text in said:
            self._write_to_log(text)
        self.resume.tidy()

    def _write_start(self, experiment: Experiment) -> None:
        with announcing("noting what the run is made from", self._trainer.log):
            experiment.write_start(
                config=self.config(),
                sources=self._trainer.sources(),
                devices=[device.name for device in tf.config.list_logical_devices()],
                run_id=None if experiment.run_id else self.saving.checkpoints.run_id(),
                origin={**self._trainer.origin(), "facts": self._own_facts()},
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_forked:
            if error is not None:
                end_child(error)
            return
        self._outcome = self._outcome_of(error)
        if isinstance(error, Exception):  # whoever catches it shows as much as is of use
            self._write_to_log("".join(traceback.format_exception(error)))
        self._unwritten = []
        if self._trainer.experiment is not None:
            try:
                self.saving.wait()
                if self._is_accepted and not self.directory_is_gone():
                    self._record_end()
                    self._upload_rest(error)
            finally:
                self._trainer.experiment.unlock(self._trainer.log)

    # -- what is said -------------------------------------------------------------------------------------------------

    def log(self, text: str) -> None:
        """Print a line, past a progress bar if there is one, and add it to the experiment's train.log."""
        # A disk that is full must not end the run, least of all by the line that reports it.
        with suppress(OSError):
            tqdm.write(printable(text))
        self._write_to_log(text)

    def say_once(self, text: str) -> None:
        """Print a line that this object has not printed before; see `log`."""
        if text not in self._said:
            self._said.add(text)
            self.log(text)

    def _write_to_log(self, text: str) -> None:
        experiment = self._trainer.experiment
        if not self._is_accepted:
            self._unwritten.append(text)
        elif experiment is not None and self._trainer.is_chief and experiment.directory.is_dir():
            with suppress(OSError):
                descriptor = open_file(experiment.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                with open(descriptor, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(printable(text) + "\n")

    # -- what became of the run, for others ---------------------------------------------------------------------------

    def record_start(self, measured: Mapping[str, bool]) -> None:
        """Leave word in run.json of where the run goes on from, that it is under way, and what was measured for it."""
        if self._record is not None:
            self._record.begin(first_step=self._trainer.global_step, start=self.resume_line(), **measured)
        if (remote := self._remote) is not None:
            remote.begin(self._trainer.log)

    def note(self, **facts: Any) -> None:
        """Note facts of this attempt in run.json, as attributes of `Attempt`."""
        if self._record is not None:
            self._record.note(**facts)

    @property
    def outcome(self) -> Outcome:
        """See `Trainer.outcome`."""
        callbacks = self._trainer.callbacks
        if self._outcome.state != "running" or not callbacks.has_ended:
            return self._outcome
        failure = callbacks.failure or callbacks.late_failure
        # The last thing that a run does is to raise what a signal stands for that has come by then.
        return self._outcome_of(failure, is_stopped=self._trainer.stop.signum is not None)

    def _outcome_of(self, error: BaseException | None, *, is_stopped: bool = False) -> Outcome:
        if isinstance(error, Exception):
            return Outcome("failed", in_one_line(error))
        if error is None and not is_stopped:
            return Outcome("finished", self.stopped_by)
        if (signum := self._trainer.stop.signum) is not None:
            return Outcome("interrupted", signal.Signals(signum).name)
        return Outcome("interrupted", None if error is None else in_one_line(error))

    def _record_end(self) -> None:
        if self._record is not None:
            loop = _in_milliseconds(self._trainer.times.loop())
            callbacks = _in_milliseconds(self._trainer.callbacks.times())
            self._record.end(self._outcome, step=self._trainer.global_step, loop=loop, callbacks=callbacks)
            self._record = None

    @property
    def _remote(self) -> Remote | None:
        experiment = self._trainer.experiment
        return experiment.remote if experiment is not None and self._trainer.is_chief else None

    def upload(self) -> None:
        """Upload what is left of a run at a URL, while a signal is still heard.

        Raises:
            StorageError: the storage cannot be reached; the message says where everything is.
            ExperimentError: another run has taken over.
        """
        if self._remote is not None and self._is_accepted and not self.directory_is_gone():
            self.saving.wait()
            self._trainer.stop.stage = f"uploading to {self._remote}"
            self.log(f"uploading what is left to {self._remote}")
            self._upload_rest(sys.exception())

    def _upload_rest(self, error: BaseException | None) -> None:
        """Upload all that is left; where the run fails with an error already, failing at this is said, and no more."""
        if self._remote is None:
            return
        is_again, self._has_failed_to_upload = self._has_failed_to_upload, False
        try:
            self._remote.finish(self.log, patience=0 if is_again else None)
        except (StorageError, ExperimentError) as failure:
            self._has_failed_to_upload = True
            if not isinstance(error, Exception):
                raise
            if failure is not error and not is_again:
                self.log(f"WARNING: {failure}")

    def directory_is_gone(self) -> bool:
        """Whether somebody has deleted or moved the directory while the run is under way."""
        experiment = self._trainer.experiment
        return experiment is not None and experiment.is_gone()

    def check(self, now: float) -> None:
        """Check what may go wrong while steps are made; cheap.

        Args:
            now: the time in seconds.

        Raises:
            ExperimentError: the directory was deleted, moved or replaced.
            NonFiniteError: what was to be saved last is not finite.
        """
        self.saving.check()
        if now - self._looked_at > 1:  # once a second is often enough
            self._looked_at = now
            self.require_directory()
            if self._remote is not None:
                self._remote.check()

    def require_directory(self) -> None:
        """Check that the directory is still there.

        Raises:
            ExperimentError: it was deleted, moved or replaced.
        """
        if self.directory_is_gone():
            raise ExperimentError(
                f"the experiment directory {self._trainer.experiment} was deleted or moved during the run, "
                f"which ends after step {self._trainer.global_step}; nothing of it can be saved there"
            )

    # -- saving and resuming ------------------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of the trainer's experiment."""
        return self.saving.checkpoints

    def start_save(self, *, gives_way: bool = True) -> Callable[[], Path]:
        """See `Trainer.start_save`."""
        self.saving.wait()
        self.require_directory()
        if not self._is_accepted:
            raise CheckpointError("nothing can be saved before the run has begun; save in before_train() or later")
        is_sound, record, remote = self._trainer.state_is_sound, self._record, self._remote

        def written() -> None:
            if is_sound and record is not None:
                record.note_save()
            if remote is not None:
                remote.wake()

        return self.saving.start(written, gives_way=gives_way)

    def config(self) -> Config | None:
        """A copy of the trainer's config, with the length that `train` was given."""
        trainer = self._trainer
        config = None if trainer.config is None else trainer.config.copy()
        if config is not None and not trainer.is_endless:
            config["model.num_steps"] = trainer.total_steps
        if config is not None and trainer.given_steps_per_epoch is not None:
            config["trainer.steps_per_epoch"] = trainer.given_steps_per_epoch
        return config

    def facts(self) -> Facts:
        """What any trainer's checkpoint records; see `Trainer.facts`."""
        config, trainer = self.config(), self._trainer
        return {
            "config": {} if config is None else config_facts(config),
            "sources": self._sources,
            "versions": versions(),
            "devices": [device.name for device in tf.config.list_logical_devices()],
            "trainer": type(trainer).__name__,
            "callbacks": trainer.callbacks.state_keys,
        }

    def _own_facts(self) -> Facts:
        """Of the facts what environment.json and config.json do not say anyway."""
        said = ("config", "versions", "devices", "trainer", "callbacks")
        return {name: fact for name, fact in self._trainer.facts().items() if name not in said}

    def resume_line(self) -> str:
        """The line "start": the step of the resume, the data position, and what has changed since."""
        return self.resume.line()


def _in_milliseconds(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in seconds.items()}
