"""One `train()` in its directory: it is taken, what is said is kept, checkpoints are written, a run is resumed."""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tqdm import tqdm

from prototrain.checkpoint import Checkpoint, Checkpoints, Snapshot
from prototrain.checkpoint.state import StateEntries, plain, random_state, set_random_state, taking
from prototrain.errors import CheckpointError, ExperimentError, NonFiniteError, StorageError
from prototrain.experiment import Experiment, source_of
from prototrain.experiment.provenance import STEPS_PER_EPOCH, changes_since, import_digests, source_digest
from prototrain.experiment.record import Outcome, RunRecord
from prototrain.experiment.remote import Remote
from prototrain.system.contained import open_file
from prototrain.system.forks import end_child, tell_of_forks
from prototrain.system.terminal import printable
from prototrain.system.tracebacks import in_one_line
from prototrain.system.waiting import announcing
from prototrain.trainers.finite import FiniteRun
from prototrain.trainers.past import check_past
from prototrain.trainers.versions import versions

if TYPE_CHECKING:
    from prototrain.config import Config
    from prototrain.trainers.base import Trainer


class Session:
    """Connects a trainer with its experiment directory while a run lasts.

    Args:
        trainer: the trainer whose state is saved and restored.

    Attributes:
        resumed: the checkpoint that the run goes on from, or None.
        inexact: why it does not go on to the bit, in words.
        began_at: the number of completed steps at its start.
        finite: looks for what is not finite in the state, if `StopOnNaN` is in the list.
        stopped_by: why the run ends before its last step, if it does.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        own = type(trainer).__module__
        # Now, before anyone edits what this process has imported.
        self._trainer_code = None if own.startswith("prototrain.") else source_digest(source_of(trainer))
        self.resumed: Checkpoint | None = None
        self.inexact: list[str] = []
        self._known: list[str] = []  # of what was said
        self._said: set[str] = set()
        self.stopped_by: str | None = None
        self._record: RunRecord | None = None
        self._outcome = Outcome("running")
        self.began_at = 0
        self._has_failed_to_upload = False
        self.finite = FiniteRun(trainer)
        self._looked_at = 0.0
        self._protected: dict[str, set[int]] = {}
        self._is_forked = False
        self._make_writer()
        tell_of_forks(self)

    def _make_writer(self) -> None:
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._writing: Future[Path] | None = None

    def after_fork(self) -> None:
        """Leave the directory to the parent, in a child that comes out of the run by `sys.exit`, for example."""
        self._is_forked, self._record = True, None
        self._make_writer()  # the parent's thread is not here

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

    def start_afresh(self) -> None:
        """Delete everything in the directory; of several workers, the chief does.

        Raises:
            ExperimentError: this trainer has made steps already, the directory is not an experiment's, or another run
                has it.
        """
        trainer = self._trainer
        if trainer.global_step:
            raise ExperimentError(
                f"train(fresh=True): this trainer has made {trainer.global_step} steps already; make a new one"
            )
        if trainer.experiment is not None and trainer.is_chief:
            with announcing(f"deleting what is in {trainer.experiment}", trainer.log):
                trainer.experiment.delete()

    def __enter__(self) -> Session:
        self._is_forked = False
        self._outcome = Outcome("running")
        self.finite.forget()
        experiment = self._trainer.experiment
        if experiment is not None and self._trainer.is_chief:
            stale = experiment.lock()
            if stale:
                self._trainer.log(stale)
            try:
                self._write_start(experiment)
            except BaseException:
                experiment.unlock(self._trainer.log)
                raise
            self.stopped_by = None
            changes = None if (config := self.config()) is None else config.changes()
            facts = self._trainer.attempt_facts()
            self._record = RunRecord(experiment.record, self._trainer.log, changes=changes, **facts)
        return self

    def _write_start(self, experiment: Experiment) -> None:
        with announcing("noting what the run is made from", self._trainer.log):
            experiment.write_start(
                config=self.config(),
                sources=self._trainer.sources(),
                devices=[device.name for device in tf.config.list_logical_devices()],
                run_id=None if experiment.run_id else self.checkpoints.run_id(),
                origin=self._origin(),
            )

    def config(self) -> Config | None:
        """A copy of the trainer's config, with the length that `train` was given."""
        trainer = self._trainer
        config = None if trainer.config is None else trainer.config.copy()
        if config is not None and not trainer.is_endless:
            config["model.num_steps"] = trainer.total_steps
        if config is not None and trainer.given_steps_per_epoch is not None:
            config["trainer.steps_per_epoch"] = trainer.given_steps_per_epoch
        return config

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
        if self._trainer.experiment is not None:
            try:
                self.wait()
                if not self.directory_is_gone():
                    self._record_end()
                    self._upload_rest(error)
            finally:
                self._trainer.experiment.unlock(self._trainer.log)

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of the trainer's experiment."""
        experiment = self._trainer.require_experiment("saving")
        return Checkpoints(experiment.checkpoints, self._trainer.log, run_id=experiment.run_id)

    def _origin(self) -> dict[str, Any]:
        found = self._trainer.origin()
        return {**found, "imports": import_digests(map(Path, found["modules"].values()))}

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
        if experiment is not None and self._trainer.is_chief and experiment.directory.is_dir():
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
        if self._remote is not None and not self.directory_is_gone():
            self.wait()
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
        writing = self._writing
        if writing is not None and writing.done() and isinstance(writing.exception(), NonFiniteError):
            self._result_of(writing)
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

    # -- saving -------------------------------------------------------------------------------------------------------

    def start_save(self) -> Callable[[], Path]:
        """See `Trainer.start_save`."""
        self.wait()
        self.require_directory()
        trainer, record, remote = self._trainer, self._record, self._remote
        trainer.monitors.flush()
        is_sound = trainer.state_is_sound
        finish = self.checkpoints.start(self._snapshot(), aside=not is_sound)

        def write() -> Path:
            path = finish()
            if is_sound and record is not None:
                record.note_save()
            if remote is not None:
                remote.wake()
            return path

        self._writing = self._writer.submit(write)
        return functools.partial(self._result_of, self._writing)

    def _result_of(self, writing: Future[Path]) -> Path:
        try:
            return writing.result()
        except NonFiniteError as error:
            self._trainer.reject_state()
            raise NonFiniteError(f"{error}; {self.resume_point()}") from None

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
            trainer.log("nothing was saved: the trainer has no experiment directory; going on")
            return
        try:
            path = trainer.save()
        except CheckpointError as error:
            trainer.log(f"WARNING: {error}; training goes on")
        else:
            trainer.log(f"saved step {trainer.global_step} to {path}; going on")

    def wait(self) -> None:
        """Wait until nothing is being written any more; whoever began it hears of a failure."""
        wait([] if self._writing is None else [self._writing])

    def _snapshot(self) -> Snapshot:
        trainer = self._trainer
        entries = StateEntries(trainer.state)
        meta = {
            "run_id": trainer.experiment.run_id if trainer.experiment else None,
            "values": entries.values(),
            "callbacks": plain(trainer.callbacks.state_dict(), "the callbacks' state"),
            "monitors": trainer.monitors.state_dict(),
            # Callbacks that a stop has kept from this step read them after the resume.
            "outputs": plain(trainer.outputs, "what run_step() returned"),
            "random": random_state(),
            "provenance": trainer.provenance(),
        }
        return Snapshot(trainer.global_step, entries.variables, entries.saveables, meta, self.finite.checking())

    # -- resuming -----------------------------------------------------------------------------------------------------

    def restore(self, resume: bool) -> None:
        """Restore the newest checkpoint; without `resume`, move older ones out of the way.

        A trainer that is already ahead of its newest checkpoint, because `train` is called a second time, goes on from
        where it is; after a step that was left half-done, from that checkpoint.

        Raises:
            CheckpointError: the checkpoints are damaged or do not fit, or there is none to go back to, or no longer
                any; or something in the trainer's state could not be saved.
        """
        self.resumed, self.inexact = None, []
        self._known = []
        self._protected.clear()
        trainer = self._trainer
        self.began_at = trainer.global_step
        self.wait()
        self._writing = None
        if not trainer.state_is_sound and (trainer.experiment is None or not resume or not self.checkpoints.steps()):
            raise CheckpointError(
                f"step {trainer.global_step + 1} failed half-done, and there is no checkpoint to go back to; "
                "make a new trainer"
            )
        self.finite.begin()
        if trainer.experiment is None:
            return
        StateEntries(trainer.state).check()
        checkpoints = self.checkpoints
        if trainer.is_chief:
            checkpoints.sweep()
        if not resume and trainer.is_chief:
            old = checkpoints.set_all_aside()
            if old is not None:
                trainer.log(f"resume=False: the checkpoints of the earlier run are kept in {old}")
        if not resume:
            return
        with announcing("checking the newest checkpoint", trainer.log):
            newest = checkpoints.newest(self.finite.check)
        trainer.stop.check()
        if newest is None and trainer.global_step == 0:
            check_past(trainer)
        if newest is None or (newest.step < trainer.global_step and trainer.state_is_sound):
            return
        with announcing(f"restoring the checkpoint of step {newest.step}", trainer.log):
            self._load(newest)
        self.resumed, self.began_at = newest, trainer.global_step
        trainer.stop.check()

    def _load(self, checkpoint: Checkpoint) -> None:
        trainer, meta = self._trainer, checkpoint.meta

        def beside() -> None:
            """What may not fit although every file is whole; the variables come behind it."""
            # An epoch's last step belongs to that epoch.
            epoch_num = max(checkpoint.step - 1, 0) // trainer.steps_per_epoch + 1
            trainer.go_to(checkpoint.step, epoch_num=epoch_num)
            self.inexact = trainer.callbacks.load_state_dict(meta["callbacks"])
            with taking("the scalars' history"):
                trainer.monitors.load_state_dict(meta["monitors"])
            with taking("the last step's outputs"):
                trainer.go_to(checkpoint.step, outputs=dict(meta["outputs"]))
            self.inexact += trainer.resume_caveats()
            with taking("the record of versions and settings"):
                self.inexact += changes_since(dict(meta["provenance"]), trainer.provenance())
            with taking("the state of the random generators"):
                set_random_state(meta["random"])

        step, is_whole = trainer.global_step, trainer.step_is_whole
        epoch_num, outputs = trainer.epoch_num, trainer.outputs
        try:
            with taking(f"checkpoint {checkpoint.path}"), trainer.fitted_to(meta["variables"], meta["provenance"]):
                StateEntries(trainer.state).restore(checkpoint, beside=beside)
        except BaseException:
            trainer.go_to(step, epoch_num=epoch_num, outputs=outputs, is_whole=is_whole)
            raise

    def weaken(self, reasons: list[str]) -> None:
        """Take note of why a resume is not exact that shows only while the run goes on, and say so; each once."""
        known = [*self._known, *self._trainer.resume_caveats()]  # the tables at the start say what is known by then
        new = [reason for reason in reasons if reason not in known]
        self._known += new
        if new and self.resumed is None:
            self._trainer.log(f"a run that goes on from this one will not be bit-exact, because {'; '.join(new)}")
        elif new:
            self.inexact += new
            self._trainer.log(f"WARNING: {self.resume_line()}")
            if self._record is not None:
                self._record.begin(first_step=self.began_at, start=self.resume_line())

    def resume_line(self) -> str:
        """Whether, from where and how exactly this run goes on, in one line."""
        if self.resumed is None:
            return f"goes on from step {self.began_at}" if self.began_at else "fresh"
        if not self.inexact:
            return f"resumed at step {self.resumed.step}, exact"
        return f"resumed at step {self.resumed.step}, not bit-exact, because {'; '.join(self.inexact)}"

    def provenance(self) -> dict[str, Any]:
        """Versions, threads and code; see `Trainer.provenance`."""
        trainer, config = self._trainer, self._trainer.config
        of_config = None if config is None else config.get("trainer.steps_per_epoch")
        return {
            **versions(),
            "trainer": type(trainer).__name__,
            "trainer code": self._trainer_code,
            STEPS_PER_EPOCH: of_config if trainer.given_steps_per_epoch is None else trainer.given_steps_per_epoch,
        }


def _in_milliseconds(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in seconds.items()}
