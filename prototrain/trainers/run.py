"""One `train()` in its experiment directory: the lock, train.log, run.json, checkpoints, and resuming from one."""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tqdm import tqdm

from prototrain.checkpoint import Checkpoint, Checkpoints, Snapshot
from prototrain.checkpoint.state import OF_CALLBACKS, FiniteState, StateEntries, in_words, late_words, restore_errors
from prototrain.checkpoint.values import decode, encode, random_state, random_state_kept, set_random_state
from prototrain.errors import (
    CheckpointError,
    ExperimentError,
    NonFiniteError,
    OutOfMemoryError,
    PrototrainError,
    StorageError,
)
from prototrain.experiment import Experiment
from prototrain.experiment.facts import Facts, changes, file_digests, versions
from prototrain.experiment.record import Outcome, RunRecord, read_past
from prototrain.system.files import open_file
from prototrain.system.signals import ignore_save_signals
from prototrain.system.terminal import printable
from prototrain.system.tracebacks import in_one_line, out_of_memory
from prototrain.system.waiting import announcing
from prototrain.system.wording import FRESH

if TYPE_CHECKING:
    from prototrain.config import Config
    from prototrain.experiment.remote import Remote
    from prototrain.trainers.base import Trainer


class Run:
    """Connects a trainer with its experiment directory during one `train()`.

    Nothing in the directory changes before `accept`, so that a refused run leaves it as it was.

    Args:
        trainer: the trainer whose state is saved and restored.

    Attributes:
        stopped_by: why the run ends before its last step, if it does.
        checkpoint: the checkpoint that it resumed from, or None.
        changes: what has changed since that checkpoint, in words.
        began_at: the number of completed steps at its start.
        is_rejected: whether `reject_state` was called.
        max_to_keep: how many checkpoints stay, or None for all; a `ModelSaver` sets it.
        finite: which variables may be NaN or infinite in a run with `StopOnNaN`.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.stopped_by: str | None = None
        self.checkpoint: Checkpoint | None = None
        self.changes: list[str] = []
        self.began_at = 0
        self.finite = FiniteState()
        self._outcome = Outcome("running")
        self._record: RunRecord | None = None
        self._sources: dict[str, str] = {}  # digests of the files that copies are kept of
        self._facts: Facts = {}  # what checkpoints record of what the run is made from
        self._is_accepted = False
        self._unwritten: list[str] = []  # lines for train.log until then
        self._said: set[str] = set()
        self._has_failed_to_upload = self.is_rejected = False
        self._looked_at = 0.0
        self._protected: dict[str, int | None] = {}
        self.max_to_keep: int | None = None
        self._registered: Collection[str] = ()  # variables in the trainer's state when the run began
        self._sets_aside = False
        self._broken: list[Path] = []  # checkpoints to set aside once the run is accepted
        self._notes: list[str] = []  # how the data position is restored, and what could not be saved
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._writing: Future[Path] | None = None

    # -- begin and end ------------------------------------------------------------------------------------------------

    @contextmanager
    def lasting(self, *, fresh: bool) -> Iterator[None]:
        """Context manager around a run: locks the directory, records how the run ends, and unlocks.

        Args:
            fresh: delete everything in the directory first.

        Raises:
            ExperimentError: another run has the directory, or it is not an experiment's.
            OutOfMemoryError: the run needs more memory than there is.
        """
        trainer, experiment = self._trainer, self._trainer.experiment
        with ExitStack() as stack:
            if experiment is not None and trainer.is_chief:
                stack.callback(experiment.unlock, trainer.log)
            if fresh:
                self._delete()
            stack.enter_context(ignore_save_signals())
            stack.enter_context(_explain_oom(trainer))
            stack.enter_context(trainer._around_run())
            self._begin()
            try:
                yield
            except BaseException as error:
                self._end(error)
                raise
            self._end(None)

    def _delete(self) -> None:
        trainer = self._trainer
        if trainer.global_step:
            raise ExperimentError(
                f"train(fresh=True): this trainer has made {trainer.global_step} steps already; make a new one"
            )
        if trainer.experiment is not None and trainer.is_chief:
            with announcing(f"deleting what is in {trainer.experiment}", trainer.log):
                trainer.experiment.delete()

    def _begin(self) -> None:
        trainer = self._trainer
        self._sources = file_digests(trainer._sources())
        self._is_accepted = False
        self._outcome, self.stopped_by = Outcome("running"), None
        self.finite.ignored = []
        self.wait()
        self._writing = None
        self._protected.clear()
        self.max_to_keep = None
        if trainer.experiment is not None and trainer.is_chief:
            stale = trainer.experiment.lock()
            if stale:
                trainer.log(stale)

    def accept(self, measured: Mapping[str, Any]) -> None:
        """Begin to write into the directory, first what has been said so far: the run may start or resume.

        Args:
            measured: facts for run.json, see `Trainer._measure`.
        """
        trainer, experiment = self._trainer, self._trainer.experiment
        self._facts = trainer._facts()
        if experiment is not None and trainer.is_chief:
            with announcing("noting what the run is made from", trainer.log):
                experiment.write_start(
                    config=self.config(),
                    sources=trainer._sources(),
                    devices=_devices(),
                    run_id=None if experiment.run_id else self.checkpoints.run_id(),
                    origin={**trainer._origin(), "facts": self._facts_of_subclass()},
                )
            changed = None if (config := self.config()) is None else config.changes()
            self._record = RunRecord(experiment.record, trainer.log, changes=changed, **trainer._attempt_facts())
        self._is_accepted = True
        said, self._unwritten = self._unwritten, []
        for text in said:
            self.log_to_file(text)
        self._tidy()
        if self._record is not None:
            self._record.note(first_step=trainer.global_step, start=self.resume_line(), **measured)
        if (remote := self._remote) is not None:
            remote.begin(trainer.log)

    def _tidy(self) -> None:
        """Delete what unfinished saves have left, and set aside the checkpoints that the run does not resume from."""
        trainer = self._trainer
        if trainer.experiment is None or not trainer.is_chief:
            return
        self.checkpoints.sweep()
        for path in self._broken:
            self.checkpoints.set_aside(path)
        old = self.checkpoints.set_all_aside() if self._sets_aside else None
        if old is not None:
            trainer.log(f"resume=False: the checkpoints of the earlier run are kept in {old}")

    def _end(self, error: BaseException | None) -> None:
        self._outcome = self._outcome_of(error)
        if isinstance(error, Exception):  # the caller shows the short form
            self.log_to_file("".join(traceback.format_exception(error)))
        self._unwritten = []
        if self._trainer.experiment is None:
            return
        self.wait()
        if self._is_accepted and not self.directory_is_gone():
            if self._record is not None:
                loop, callbacks = self._trainer.times.loop(), self._trainer.callbacks.times()
                times = {"loop": _in_milliseconds(loop), "callbacks": _in_milliseconds(callbacks)}
                self._record.end(self._outcome, step=self._trainer.global_step, **times)
                self._record = None
            self._upload_rest(error)

    # -- what is said -------------------------------------------------------------------------------------------------

    def log(self, text: str) -> None:
        """Print a line, or several, past a progress bar if there is one, and add it to the experiment's train.log."""
        # A disk that is full must not end the run, least of all by the line that reports it.
        with suppress(OSError):
            tqdm.write(printable(text))
        self.log_to_file(text)

    def say_once(self, text: str) -> None:
        """Print a line that this object has not printed before; see `log`."""
        if text not in self._said:
            self._said.add(text)
            self.log(text)

    def log_to_file(self, text: str) -> None:
        """Add lines to train.log, as soon as the run is accepted."""
        experiment = self._trainer.experiment
        if not self._is_accepted:
            self._unwritten.append(text)
        elif experiment is not None and self._trainer.is_chief and experiment.directory.is_dir():
            with suppress(OSError):
                descriptor = open_file(experiment.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                with open(descriptor, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(printable(text) + "\n")

    # -- run.json, and the copy at a URL ------------------------------------------------------------------------------

    def note(self, **facts: Any) -> None:
        """Note facts of this attempt in run.json, as attributes of `Attempt`."""
        if self._record is not None:
            self._record.note(**facts)

    @property
    def outcome(self) -> Outcome:
        """How the run ended, as run.json has it; "running" before `after_train`."""
        callbacks = self._trainer.callbacks
        if self._outcome.state != "running" or not callbacks.has_ended:
            return self._outcome
        failure = callbacks.failure or callbacks.late_failure
        # A signal that has come by then is raised as the run's last act.
        return self._outcome_of(failure, is_stopped=self._trainer.stop.signum is not None)

    def _outcome_of(self, error: BaseException | None, *, is_stopped: bool = False) -> Outcome:
        if isinstance(error, Exception):
            return Outcome("failed", in_one_line(error))
        if error is None and not is_stopped:
            return Outcome("finished", self.stopped_by)
        if (signum := self._trainer.stop.signum) is not None:
            return Outcome("interrupted", signal.Signals(signum).name)
        return Outcome("interrupted", None if error is None else in_one_line(error))

    @property
    def _remote(self) -> Remote | None:
        experiment = self._trainer.experiment
        return experiment.remote if experiment is not None and self._trainer.is_chief else None

    def upload(self) -> None:
        """Upload what is left of a run at a URL, while signals are still handled.

        Raises:
            StorageError: the storage cannot be reached; the message says where everything is.
            ExperimentError: another run has taken over.
        """
        if self._remote is not None and self._is_accepted and not self.directory_is_gone():
            self.wait()
            self._trainer.stop.stage = f"uploading to {self._remote}"
            self.log(f"uploading what is left to {self._remote}")
            self._upload_rest(sys.exception())

    def _upload_rest(self, error: BaseException | None) -> None:
        """Upload all that is left; if the run fails with an error already, a failure of this is only logged."""
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
        """Whether the directory was deleted or moved during the run."""
        experiment = self._trainer.experiment
        return experiment is not None and experiment.is_gone()

    def check(self, now: float) -> None:
        """Check what may fail while steps are made; cheap.

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

    @property
    def next_boundary(self) -> int:
        """The last step of the present epoch, or of the run, if that comes first."""
        trainer = self._trainer
        return min(trainer.epoch_num * trainer.steps_per_epoch, trainer.total_steps)

    # -- saving -------------------------------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of the trainer's experiment."""
        experiment = self._trainer.require_experiment("saving")
        return Checkpoints(experiment.checkpoints, self._trainer.log, run_id=experiment.run_id)

    def protect(self, who: str, step: int | None) -> None:
        """Keep the checkpoint of a step from being deleted, instead of the one that `who` has named before."""
        self._protected[who] = step

    def prune(self) -> None:
        """Delete all but the newest `max_to_keep` checkpoints and the protected ones; none without a `ModelSaver`."""
        if self.max_to_keep is not None:
            self.checkpoints.prune(self.max_to_keep, protected=self.protected_steps)

    @property
    def protected_steps(self) -> set[int]:
        """The steps whose checkpoints must stay."""
        return {step for step in self._protected.values() if step is not None}

    def start_save(self) -> Callable[[], Path]:
        """Begin to write a checkpoint, see `Trainer.save`; training can continue while the rest is written.

        Returns:
            a function that waits until it is written and returns the directory.
        """
        with self._trainer.stop.uninterrupted():
            return self._start_save()

    def _start_save(self) -> Callable[[], Path]:
        self.wait()
        self.require_directory()
        if not self._is_accepted:
            raise CheckpointError("nothing can be saved before the run has begun; save in before_train() or later")
        trainer, record, remote = self._trainer, self._record, self._remote
        is_sound = self.state_is_sound
        trainer.monitors.flush()
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
            self.reject_state()
            raise NonFiniteError(f"{error}; {self.resume_point()}") from None

    def reject_state(self) -> None:
        """Save the trainer's state aside from now on, since a run must not resume from it."""
        self.is_rejected = True

    @property
    def state_is_sound(self) -> bool:
        """Whether a run may resume from the trainer's state: no step is half-done, and it was not rejected."""
        return self._trainer.step_is_whole and not self.is_rejected

    def wait(self) -> None:
        """Wait until nothing is being written; a failure is raised by the function that `start_save` returned."""
        wait([] if self._writing is None else [self._writing])

    def resume_point(self) -> str:
        """The checkpoint that a resume would use, in words."""
        if self._trainer.experiment is None:
            return "there is no experiment directory to resume from"
        self.wait()
        steps = self.checkpoints.steps()
        found = f"the checkpoint of step {steps[-1]}" if steps else "the start: there is no checkpoint yet"
        return f"a resume continues from {found}"

    def save_as_asked(self) -> None:
        """Write a checkpoint because a signal has asked for it, and log it; of several workers, the chief does."""
        trainer = self._trainer
        if not trainer.is_chief:
            return
        if trainer.experiment is None:
            trainer.log("nothing was saved: the trainer has no experiment directory; continuing")
            return
        try:
            path = trainer.save()
        except CheckpointError as error:
            trainer.log(f"WARNING: {error}; training continues")
        else:
            trainer.log(f"saved step {trainer.global_step} to {path}; continuing")

    def _snapshot(self) -> Snapshot:
        trainer = self._trainer
        entries = StateEntries(trainer.state)
        late = entries.late(self._registered)
        if late:
            self.say_once(f"WARNING: {late_words(late)}, or this run cannot be resumed")
        meta = {
            "run_id": trainer.experiment.run_id if trainer.experiment else None,
            "values": entries.values(),
            "late": late,
            "callbacks": encode(trainer.callbacks.state_dict(), "the callbacks' state", loose=True),
            "monitors": trainer.monitors.state_dict(),
            # Callbacks that a stop has kept from this step read them after the resume.
            "outputs": encode(trainer.outputs, "what run_step() returned", loose=True),
            "random": random_state(),
            "facts": self._facts,
        }
        looks = trainer.check_finite and self.state_is_sound
        check = functools.partial(self._check_finite, trainer.global_step) if looks else None
        return Snapshot(trainer.global_step, entries.variables, entries.saveables, meta, check)

    # -- resuming -----------------------------------------------------------------------------------------------------

    def restore(self, resume: bool) -> None:
        """Restore the newest checkpoint; without `resume`, older ones are set aside.

        A trainer that is already ahead of its newest checkpoint, because `train` is called a second time, continues
        from where it is; after a step that failed half-done, from that checkpoint.

        Raises:
            CheckpointError: the checkpoints are damaged or do not fit, or the one that is needed does not exist; or
                something in the trainer's state cannot be saved.
        """
        trainer = self._trainer
        self.checkpoint, self.changes, self._notes = None, [], []
        self._sets_aside, self._broken = False, []
        self.began_at = trainer.global_step
        if not self.state_is_sound and (trainer.experiment is None or not resume or not self.checkpoints.steps()):
            raise CheckpointError(
                f"step {trainer.global_step + 1} failed half-done, and there is no checkpoint to go back to; "
                "make a new trainer"
            )
        if trainer.check_finite:
            found = self.finite.begin(StateEntries(trainer.state).variables)
            if found:
                trainer.log(f"StopOnNaN: {in_words(found)} from the start and left alone")
        if trainer.experiment is None:
            return
        entries = StateEntries(trainer.state)
        entries.values()  # which fails for what no checkpoint could hold
        self._registered = entries.variables.keys()
        self._sets_aside = not resume
        if not resume:
            return
        with announcing("checking the newest checkpoint", trainer.log):
            newest = self.checkpoints.newest(self._check_is_finite, broken=self._broken)
        trainer.stop.check()
        if newest is None and trainer.global_step == 0:
            self._check_past(trainer.experiment)
        if newest is None or (newest.step < trainer.global_step and self.state_is_sound):
            return
        with announcing(f"restoring the checkpoint of step {newest.step}", trainer.log):
            self._load(newest)
        self.checkpoint, self.began_at = newest, trainer.global_step
        trainer.stop.check()

    def _check_past(self, experiment: Experiment) -> None:
        """Fail if earlier checkpoints of the run are gone; warn if an earlier attempt has left none."""
        past = read_past(experiment.record, experiment.metrics)
        if past is None:
            return
        if past.has_saved:
            raise CheckpointError(
                f"{experiment} has been a run of {past.steps} steps, but its checkpoints are gone from "
                f"{experiment.checkpoints}; put one back, start again with {FRESH}, or take another directory"
            )
        came = f"came to step {past.steps}" if past.steps else "was killed"
        rows = "; its rows in metrics.jsonl are superseded" if experiment.metrics.exists() else ""
        self.log(f"WARNING: the attempt before {came} and left no checkpoint: the run begins again at step 0{rows}")

    def _load(self, checkpoint: Checkpoint) -> None:
        trainer, meta = self._trainer, checkpoint.meta
        before = trainer.global_step, trainer.epoch_num, trainer.outputs, trainer.step_is_whole
        try:
            with (
                restore_errors(f"checkpoint {checkpoint.path}"),
                trainer._fitted_to(meta["variables"], meta["facts"]),
                StateEntries(trainer.state).restoring(checkpoint),
            ):
                self._load_meta(checkpoint)
        except BaseException:
            step, epoch_num, outputs, is_whole = before
            trainer._go_to(step, epoch_num=epoch_num, outputs=outputs, is_whole=is_whole)
            raise

    def _load_meta(self, checkpoint: Checkpoint) -> None:
        """Restore what may not fit although every file is whole; the variables follow."""
        trainer, meta = self._trainer, checkpoint.meta
        # An epoch's last step belongs to that epoch.
        epoch_num = max(checkpoint.step - 1, 0) // trainer.steps_per_epoch + 1
        trainer._go_to(checkpoint.step, epoch_num=epoch_num)
        with restore_errors("the callbacks' state"):
            states = decode(meta["callbacks"])
        trainer.callbacks.load_state_dict(states)
        with restore_errors("the scalars' history"):
            trainer.monitors.load_state_dict(meta["monitors"])
        with restore_errors("the last step's outputs"):
            trainer._go_to(checkpoint.step, outputs=dict(decode(meta["outputs"])))
        self._notes = trainer._after_restore()
        with restore_errors("the record of versions and settings"):
            self.changes = changes(dict(meta["facts"]), trainer._facts())
        with restore_errors("the state of the random generators"):
            set_random_state(meta["random"])

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Context manager that undoes what is changed inside of restored state: the checkpoint has those changes."""
        with random_state_kept(), StateEntries(self._trainer.state).kept():
            yield

    def resume_line(self) -> str:
        """The line "start": the step of the resume, the data position, and what has changed since."""
        if self.checkpoint is None:
            return f"continues from step {self.began_at}" if self.began_at else "fresh"
        changed = [f"changed: {', '.join(self.changes)}"] if self.changes else []
        return "; ".join([f"resumed at step {self.checkpoint.step}", *self._notes, *changed])

    # -- StopOnNaN ----------------------------------------------------------------------------------------------------

    def find_not_finite(self) -> str | None:
        """What in the trainer's state is not finite and should be, in words."""
        found = self.finite.find(StateEntries(self._trainer.state).variables)
        return in_words(found) if found else None

    def _check_finite(self, step: int, values: Mapping[str, Any]) -> None:
        """Check the variables that are about to be saved, in any thread."""
        found = self.finite.find(values)
        if found:
            raise NonFiniteError(f"step {step} is not saved, since {in_words(found)}")

    def _check_is_finite(self, checkpoint: Checkpoint) -> None:
        """Check the variables of a checkpoint that are about to be restored."""
        if not self._trainer.check_finite or not checkpoint.meta["variables"]:
            return
        own = StateEntries(self._trainer.state).variables
        saved = checkpoint.tensors().items()
        found = self.finite.find({name: v for name, v in saved if name in own or not name.startswith(OF_CALLBACKS)})
        if found:
            raise CheckpointError(
                f"checkpoint {checkpoint.path} is not resumed from: {in_words(found)}; variables that may be so are "
                "named by StopOnNaN(ignore=...)"
            )

    # -- what checkpoints and run.json record -------------------------------------------------------------------------

    def config(self) -> Config | None:
        """A copy of the trainer's config, with the length that `train` was given."""
        trainer = self._trainer
        config = None if trainer.config is None else trainer.config.copy()
        epochs = None if config is None else config.get("model.num_epochs")
        is_in_epochs = (epochs or 0) * trainer.steps_per_epoch == trainer.total_steps
        if config is not None and not trainer.is_endless and not is_in_epochs:
            config["model.num_steps"] = trainer.total_steps
        if config is not None and trainer.given_steps_per_epoch is not None:
            config["trainer.steps_per_epoch"] = trainer.given_steps_per_epoch
        return config

    def facts(self) -> Facts:
        """What a checkpoint of any trainer records; see `Trainer._facts`."""
        config, trainer = self.config(), self._trainer
        return {
            "config": {} if config is None else config.facts(),
            "sources": self._sources,
            "versions": versions(),
            "devices": _devices(),
            "trainer": type(trainer).__name__,
            "callbacks": trainer.callbacks.state_keys,
        }

    def _facts_of_subclass(self) -> Facts:
        """Facts that environment.json and config.json do not hold."""
        said = ("config", "versions", "devices", "trainer", "callbacks")
        return {name: fact for name, fact in self._facts.items() if name not in said}


@contextmanager
def _explain_oom(trainer: Trainer) -> Iterator[None]:
    """Turn an error that a lack of memory has led to into one line: what was asked for, and where a resume starts."""
    try:
        yield
    except OutOfMemoryError:
        raise
    except Exception as error:
        asked = out_of_memory(error)
        if asked is None:
            raise
        said = str(error) if isinstance(error, PrototrainError) else f"after step {trainer.global_step}: {asked}"
        cure = "" if trainer.config is None else "; a larger model.accumulate_steps needs less at a time"
        raise OutOfMemoryError(f"out of memory: {said}; {trainer.run.resume_point()}{cure}") from error


def _devices() -> list[str]:
    return [device.name for device in tf.config.list_logical_devices()]


def _in_milliseconds(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in seconds.items()}
