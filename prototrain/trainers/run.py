"""A run in its experiment directory: the lock, train.log, run.json, checkpoints and resuming."""

from __future__ import annotations

import functools
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from prototrain.checkpoint.state import CALLBACK_PREFIX, StateEntries, describe_not_finite, not_finite, restore_errors
from prototrain.checkpoint.store import Checkpoint, Checkpoints, Snapshot
from prototrain.checkpoint.values import decode, encode, preserve_random_state, random_state, set_random_state
from prototrain.errors import CheckpointError, ExperimentError, NonFiniteError, StorageError
from prototrain.experiment.facts import Facts, changes, sources_of
from prototrain.experiment.record import Outcome, RunRecord, has_finished, has_saved
from prototrain.system.signals import ignore_save_signals, in_thread
from prototrain.system.terminal import FRESH, announcing, printable, shorten_list
from prototrain.system.tracebacks import in_one_line
from prototrain.tf_private import keras_random_state, set_keras_random_state

if TYPE_CHECKING:
    from prototrain.config import Config
    from prototrain.experiment import Experiment
    from prototrain.experiment.remote import Remote
    from prototrain.trainers.base import Trainer


class Run:
    """Connects a trainer with its experiment directory during one call of `train()`.

    Nothing in the directory changes before `accept`, so a refused run leaves it untouched.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.stopped_by: str | None = None  # the reason why the run ended before its last step
        self.checkpoint: Checkpoint | None = None  # that the run resumed from
        self.began_at = 0  # the number of completed steps at the start of the run
        self.is_failed = False  # whether the state is that of a failed step, from which no run may resume
        self.max_to_keep: int | None = None  # checkpoints, or None for all; a `ModelSaver` sets it
        self._not_finite: dict[str, bool] = {}  # by name, whether a variable was not finite at the first start
        self._outcome = Outcome("running")
        self._record: RunRecord | None = None
        self._facts: Facts = {}  # recorded in every checkpoint
        self._deletes_first = False  # whether `accept` deletes what is in the directory
        self.is_accepted = False  # whether the run has started to write into the directory
        self.is_active = False  # whether `train` is running
        self._callback_states: dict[str, Any] | None = None  # at the end of the last accepted run
        self._callback_keys: set[str] = set()  # of the callbacks of the last run
        self._unwritten: list[str] = []  # lines for train.log before the run is accepted
        self._said: set[str] = set()
        self._looked_at = 0.0
        self._protected: dict[str, int | None] = {}
        self._registered: set[str] = set()  # variables in the trainer's state at the start of the run
        self._sets_aside = False
        self._broken: list[Path] = []  # checkpoints to set aside once the run is accepted
        self._resumed: list[str] = []  # parts of the row "start"
        self._writing: Future[Path] | None = None

    @contextmanager
    def active(self, *, fresh: bool) -> Iterator[None]:
        """Context manager around a run: locks the directory, records the outcome, and unlocks the directory.

        With `fresh`, everything in the directory is deleted when the run is accepted.
        """
        trainer, experiment = self._trainer, self._own_experiment
        if fresh and trainer.global_step:
            raise ExperimentError(
                f"train(fresh=True): this trainer has already run {trainer.global_step} steps; create a new trainer"
            )
        self._deletes_first = fresh
        with ExitStack() as stack:
            self.is_active = True
            stack.callback(setattr, self, "is_active", False)
            if experiment is not None:
                stack.callback(lambda: experiment.unlock(trainer.log, refused=not self.is_accepted))
                if fresh:
                    experiment.check_deletable()
            if trainer.config is not None:
                stack.callback(setattr, trainer.config, "planned_steps", None)
            stack.enter_context(ignore_save_signals())
            stack.enter_context(trainer._around_run())
            self._prepare()
            try:
                yield
            except BaseException as error:
                self._end(error)
                raise
            self._end(None)

    def _prepare(self) -> None:
        self.is_accepted = False
        self._outcome, self.stopped_by = Outcome("running"), None
        self.wait()
        self._writing = None
        self._protected.clear()
        self.max_to_keep = None
        log = self._trainer.log
        if self._own_experiment is not None and (stale := self._own_experiment.lock(log)):
            log(stale)

    def accept(self) -> None:
        """Accept the run and start to write into the directory, including the lines logged so far."""
        trainer, experiment = self._trainer, self._own_experiment
        self._drop_entries(set(trainer.callbacks.by_key))
        self._facts = trainer._facts()
        if self.checkpoint is not None:
            with restore_errors(f"the facts in checkpoint {self.checkpoint.path}"):
                changed = changes(dict(self.checkpoint.meta["facts"]), self._facts)
            self._resumed += [f"changed: {', '.join(changed)}"] if changed else []
        if experiment is not None and not (self.has_nothing_to_do and has_finished(experiment.record)):
            if self._deletes_first:
                with announcing(f"deleting what is in {experiment}", trainer.log):
                    experiment.delete()
            config = self.config()
            with announcing("writing config, sources and environment", trainer.log):
                # The directory already has the other facts.
                known = ("config", "versions", "devices", "trainer", "callbacks")
                facts = {name: fact for name, fact in self._facts.items() if name not in known}
                experiment.write_start(
                    config=config,
                    sources=sources_of(trainer),
                    run_id=None if self.checkpoint is None else self.checkpoint.meta["run_id"],
                    origin={**trainer._origin(), "devices": self._facts["devices"], "facts": facts},
                )
            self._record = RunRecord(
                experiment.record,
                trainer.log,
                trainer.times.clock() - trainer.times.began,
                total_steps=None if trainer.is_endless else trainer.total_steps,
                changes=None if config is None else config.changes(),
                **{name: self._facts[name] for name in ("jit_compile", "workers") if name in self._facts},
            )
        self.is_accepted = True
        said, self._unwritten = self._unwritten, []
        for text in said:
            self.log_to_file(text)
        if experiment is not None:
            self._clean_up()
        self.note(first_step=trainer.global_step, start=self.start_row())
        if (remote := self._remote) is not None:
            remote.begin(trainer.log)

    def _clean_up(self) -> None:
        """Delete the remains of a killed run, and move checkpoints that the run does not resume from."""
        self.checkpoints.delete_leftovers()
        for path in self._trainer.require_experiment("resuming").directory.glob(".tmp-*.json-*"):
            path.unlink(missing_ok=True)
        for path in self._broken:
            self.checkpoints.set_aside(path)
        old = self.checkpoints.set_all_aside() if self._sets_aside else None
        if old is not None:
            self.log(f"resume=False: the checkpoints of the earlier run are kept in {old}")

    def _end(self, error: BaseException | None) -> None:
        self._outcome = self._outcome_of(error)
        if isinstance(error, Exception):  # the caller prints a short message
            self.log_to_file("".join(traceback.format_exception(error)))
        self._unwritten = []
        if self._trainer.experiment is None:
            return
        self.wait()
        if self.is_accepted and not self.directory_is_gone():
            if self._record is not None:
                seconds = {"loop": self._trainer.times.loop(), "callbacks": self._trainer.callbacks.times()}
                times = {kind: {n: round(value, 3) for n, value in one.items()} for kind, one in seconds.items()}
                self._record.end(self._outcome, step=self._trainer.global_step, **times)
                self._record = None
            self._upload_rest(error)

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether the restored run has already made all steps."""
        trainer = self._trainer
        return 0 < trainer.global_step >= trainer.total_steps and not trainer.callbacks.unfinished

    @property
    def is_fresh(self) -> bool:
        """Whether the run began at step 0 without a checkpoint."""
        return self.began_at == 0 and self.checkpoint is None

    @property
    def _own_experiment(self) -> Experiment | None:
        """The experiment, if this process writes it."""
        return self._trainer.experiment if self._trainer.is_chief else None

    def log(self, text: str) -> None:
        """Print one or more lines, without breaking a progress bar, and append them to the experiment's train.log."""
        # A full disk must not end the run.
        with suppress(OSError, AttributeError):  # AttributeError: stdout is closed
            tqdm.write(printable(text))
        self.log_to_file(text)

    def log_once(self, text: str) -> None:
        """Log a line, unless this method has logged it before."""
        if text not in self._said:
            self._said.add(text)
            self._trainer.log(text)

    def log_to_file(self, text: str) -> None:
        """Append lines to train.log, or keep them until the run is accepted."""
        experiment = self._own_experiment
        if not self.is_accepted:
            self._unwritten.append(text)
        elif experiment is not None and experiment.directory.is_dir():
            with suppress(OSError), open(experiment.log, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(printable(text) + "\n")

    def note(self, **facts: Any) -> None:
        """Record facts of this attempt in run.json, as attributes of `Attempt`."""
        if self._record is not None:
            self._record.note(**facts)

    @property
    def outcome(self) -> Outcome:
        """The outcome of the run, as in run.json; "running" before `after_train`."""
        callbacks = self._trainer.callbacks
        if self._outcome.state != "running" or not callbacks.has_ended:
            return self._outcome
        return self._outcome_of(callbacks.failure)

    def _outcome_of(self, error: BaseException | None) -> Outcome:
        if isinstance(error, Exception):
            return Outcome("failed", in_one_line(error))
        if (signum := self._trainer.stop.signum) is not None:  # `train` raises its exception at the very end
            return Outcome("interrupted", signal.Signals(signum).name)
        return Outcome("finished", self.stopped_by) if error is None else Outcome("interrupted", in_one_line(error))

    @property
    def _remote(self) -> Remote | None:
        return None if self._own_experiment is None else self._own_experiment.remote

    def upload(self) -> None:
        """Upload the remaining files of a run at a URL, while signals are still handled."""
        if self._remote is not None and self.is_accepted and not self.directory_is_gone():
            self.wait()
            self.log(f"uploading what is left to {self._remote}")
            self._upload_rest(sys.exception())

    def _upload_rest(self, error: BaseException | None) -> None:
        """Upload the remaining files. If the run has already failed, a failed upload is only logged."""
        try:
            if self._remote is not None:
                self._remote.finish(self.log)
        except (StorageError, ExperimentError) as failure:
            if not isinstance(error, Exception):
                raise
            if not isinstance(error, StorageError):
                self.log_once(f"WARNING: {failure}")

    def directory_is_gone(self) -> bool:
        """Return whether the directory was deleted or moved during the run."""
        experiment = self._trainer.experiment
        return experiment is not None and experiment.is_gone()

    def check_between_steps(self, now: float) -> None:
        """Check cheaply that the directory is there and the state of the last save was finite."""
        writing = self._writing
        if writing is not None and writing.done() and isinstance(writing.exception(), NonFiniteError):
            self._result_of(writing)
        if now - self._looked_at > 1:  # once a second is often enough
            self._looked_at = now
            self.require_directory()
            if self._remote is not None:
                self._remote.check()

    def require_directory(self) -> None:
        """Raise an ExperimentError if the directory was deleted or moved."""
        if self.directory_is_gone():
            raise ExperimentError(
                f"the experiment directory {self._trainer.experiment} was deleted or moved during the run, "
                f"which ends after step {self._trainer.global_step}; nothing of it can be saved there"
            )

    @property
    def next_boundary(self) -> int:
        """The last step of the current epoch, or of the run, whichever comes first."""
        trainer = self._trainer
        return min(trainer.epoch_num * trainer.steps_per_epoch, trainer.total_steps)

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints of the trainer's experiment."""
        experiment = self._trainer.require_experiment("saving")
        return Checkpoints(experiment.checkpoints, self._trainer.log, run_id=experiment.run_id)

    def protect(self, who: str, step: int | None) -> None:
        """Protect a step's checkpoint from deletion and replacement, instead of the earlier one of `who`."""
        self._protected[who] = step

    def prune(self) -> None:
        """Delete all but the newest `max_to_keep` checkpoints and the protected ones."""
        if self.max_to_keep is not None:
            self.checkpoints.prune(self.max_to_keep, protected=self.protected_steps)

    @property
    def protected_steps(self) -> set[int]:
        """The steps whose checkpoints must not be deleted or replaced."""
        return {step for step in self._protected.values() if step is not None}

    def start_save(self) -> Callable[[], Path]:
        """Start to write a checkpoint in another thread, while training continues; see `Trainer.save`.

        The returned function waits until the checkpoint is written.
        """
        trainer, record, remote = self._trainer, self._record, self._remote
        self.wait()
        self.require_directory()
        if not self.is_accepted:
            raise CheckpointError("nothing can be saved before the run has begun; save in before_train() or later")
        is_sound = self.state_is_sound
        trainer.monitors.flush()
        snapshot = self._snapshot()
        keep = is_sound and snapshot.step in self.protected_steps
        finish = self.checkpoints.start(snapshot, aside=not is_sound, keep=keep)

        def write() -> Path:
            path = finish()
            if is_sound and record is not None:
                record.note_save()
            if remote is not None:
                remote.wake()
            return path

        self._writing = in_thread(write, "save")
        return functools.partial(self._result_of, self._writing)

    def _result_of(self, writing: Future[Path]) -> Path:
        try:
            return writing.result()
        except NonFiniteError as error:
            self.mark_failed()
            raise NonFiniteError(f"{error}; {self.resume_point()}") from None

    def mark_failed(self) -> None:
        """Mark the state as that of a failed step: saves go to ``failed-<step>``, from which no run resumes."""
        self.is_failed = True

    @property
    def state_is_sound(self) -> bool:
        """Whether a run may resume from the trainer's state: the last step is complete, and the state not rejected."""
        return self._trainer.step_is_whole and not self.is_failed

    def wait(self) -> None:
        """Wait until no checkpoint is being written. The function that `start_save` returned raises its errors."""
        wait([] if self._writing is None else [self._writing])

    def resume_point(self) -> str:
        """Return a phrase that describes where a resume would continue."""
        if self._trainer.experiment is None:
            return "there is no experiment directory to resume from"
        self.wait()
        steps = self.checkpoints.steps()
        found = f"the checkpoint of step {steps[-1]}" if steps else "the start: there is no checkpoint yet"
        return f"a resume continues from {found}"

    def save_as_asked(self) -> None:
        """Write and log the checkpoint that a signal asked for. Only the chief worker does this."""
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
        if late := sorted(entries.required - self._registered):
            self.log_once(
                f"WARNING: added to trainer.state after the start of the run: {shorten_list(late)}; add them before "
                "train(), or this run cannot be resumed"
            )
        meta = {
            "run_id": trainer.experiment.run_id if trainer.experiment else None,
            "values": entries.values(),
            "callbacks": encode(trainer.callbacks.state_dict(), "the callbacks' state", loose=True),
            "monitors": trainer.monitors.state_dict(),
            # If a stop came before this step's callbacks, they run after the resume and read these outputs.
            "outputs": encode(trainer.outputs, "what run_step() returned", loose=True),
            "random": {**random_state(), "keras": keras_random_state()},
            "facts": self._facts,
        }
        step = trainer.global_step

        def check(values: Mapping[str, Any]) -> None:
            if (found := self.find_not_finite(values)) is not None:
                raise NonFiniteError(f"step {step} is not saved, since {found}")

        looks = trainer.check_finite and self.state_is_sound
        return Snapshot(step, entries.variables, entries.saveables, meta, check if looks else None)

    def _drop_entries(self, keys: set[str]) -> None:
        """Remove the variables of callbacks of the last run that have no part in this one, such as old averages."""
        for key in self._callback_keys - keys:
            for name in [name for name in self._trainer.state if name.startswith(f"{CALLBACK_PREFIX}{key}/")]:
                del self._trainer.state[name]
        self._callback_keys = keys

    def keep_callback_states(self) -> None:
        """Keep the states of the callbacks at the end of an accepted run, for another call of `train`."""
        if self.is_accepted:
            self._callback_states = None
            with suppress(Exception):  # such as of a callback whose `before_train` has failed
                held = self._trainer.callbacks.state_dict()
                self._callback_states = decode(encode(held, "the callbacks' state", loose=True))

    def restore(self, resume: bool) -> None:
        """Restore the newest checkpoint. Without `resume`, checkpoints are moved away when the run is accepted.

        If `train` is called again, it continues from its current state, unless there is a checkpoint of a later step.
        After a step that failed halfway, it continues from the checkpoint.
        """
        trainer, experiment = self._trainer, self._trainer.experiment
        resume = resume and not self._deletes_first
        step = self.began_at = trainer.global_step
        self.checkpoint, self._broken = None, []
        self._sets_aside = experiment is not None and not resume and not self._deletes_first
        self._resumed = [f"continues from step {step}" if step else "fresh"]
        entries = StateEntries(trainer.state)
        if experiment is not None:
            entries.values()  # raises an error for entries that cannot be saved
            self._registered = set(entries.variables)
        newest = self._find_newest(experiment) if experiment is not None and resume else None
        if newest is None and not self.state_is_sound:
            raise CheckpointError(
                f"step {step + 1} failed halfway, and there is no checkpoint to go back to; make a new trainer"
            )
        if newest is None and step == 0:
            trainer._load_first_weights()
        if trainer.check_finite:
            self._note_not_finite(entries.variables)
        # Of the callbacks of the run that this one continues.
        states = self._callback_states if experiment is not None and step and self.state_is_sound else None
        is_older = newest is not None and (newest.step < step or (newest.step == step and states is not None))
        if newest is None or (is_older and self.state_is_sound):
            if states is not None and resume:
                trainer.callbacks.load_state_dict(states)
            return
        with announcing(f"restoring the checkpoint of step {newest.step}", trainer.log):
            self._load(newest)
        if trainer.check_finite and (what := self.find_not_finite()) is not None:  # saved without StopOnNaN
            raise CheckpointError(
                f"{what} in {newest.path}; delete this checkpoint to continue from one before, or leave out StopOnNaN"
            )
        self.checkpoint, self.began_at = newest, trainer.global_step
        trainer.stop.check()

    def _find_newest(self, experiment: Experiment) -> Checkpoint | None:
        """Return the newest valid checkpoint, if the run has saved one, and note which newer ones are damaged."""
        with announcing("checking the newest checkpoint", self._trainer.log):
            self.checkpoints.recover()
            newest = self.checkpoints.newest(broken=self._broken)
        self._trainer.stop.check()
        if newest is None and self._trainer.global_step == 0 and has_saved(experiment.record):
            raise CheckpointError(
                f"the checkpoints of {experiment} are missing in {experiment.checkpoints}; restore one, start "
                f"again with {FRESH}, or use another directory"
            )
        return newest

    def _note_not_finite(self, variables: Mapping[str, Any]) -> None:
        """Note which variables are not finite before training; they are not checked."""
        new = {name: value for name, value in variables.items() if name not in self._not_finite}
        found = not_finite(new)
        self._not_finite.update({name: name in found for name in new})
        if found:
            self._trainer.log(f"StopOnNaN: {describe_not_finite(found)} before training and not checked")

    def _load(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint completely or, if a part of it does not fit, not at all."""
        trainer, meta = self._trainer, checkpoint.meta
        before = trainer.global_step, trainer.epoch_num, trainer.outputs, trainer.step_is_whole
        # The last step of an epoch belongs to that epoch, not to the next one.
        epoch_num = max(checkpoint.step - 1, 0) // trainer.steps_per_epoch + 1
        try:
            with (
                restore_errors(f"checkpoint {checkpoint.path}"),
                trainer._around_restore(meta["facts"]),
                StateEntries(trainer.state).restoring(checkpoint),
            ):
                trainer._set_step(checkpoint.step, epoch_num=epoch_num)
                trainer.callbacks.load_state_dict(decode(meta["callbacks"]))
                trainer.monitors.load_state_dict(meta["monitors"])
                trainer._set_step(checkpoint.step, outputs=dict(decode(meta["outputs"])))
                self._resumed = [f"resumed at step {checkpoint.step}", *trainer._after_restore()]
                set_keras_random_state(meta["random"]["keras"])
                set_random_state(meta["random"])
        except BaseException:
            step, epoch_num, outputs, is_whole = before
            trainer._set_step(step, epoch_num=epoch_num, outputs=outputs, is_whole=is_whole)
            raise

    @contextmanager
    def undoing_changes(self) -> Iterator[None]:
        """Context manager that reverts changes to the restored state, which already includes them."""
        keras_state = keras_random_state()
        with preserve_random_state(), StateEntries(self._trainer.state).preserve():
            yield
            set_keras_random_state(keras_state)

    def start_row(self) -> str:
        """Return the row "start": the step of the resume, the data position, and changes since the checkpoint."""
        return "; ".join(self._resumed)

    def find_not_finite(self, values: Mapping[str, Any] | None = None) -> str | None:
        """Return a phrase that names the variables that are not finite, except those that were not at the start.

        `values` are the values by name; those of the trainer's state if None.
        """
        values = StateEntries(self._trainer.state).variables if values is None else values
        found = not_finite({name: value for name, value in values.items() if not self._not_finite.get(name)})
        return describe_not_finite(found) if found else None

    def config(self) -> Config | None:
        """Return a copy of the trainer's config with the length that was passed to `train`."""
        trainer = self._trainer
        if trainer.config is None:
            return None
        config: Config = trainer.config.copy()
        is_in_epochs = (config.get("model.num_epochs") or 0) * trainer.steps_per_epoch == trainer.total_steps
        if not trainer.is_endless and not is_in_epochs:
            config["model.num_steps"] = trainer.total_steps
        if trainer.given_steps_per_epoch is not None:
            config["trainer.steps_per_epoch"] = trainer.given_steps_per_epoch
        return config
