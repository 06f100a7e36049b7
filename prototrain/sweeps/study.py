"""The trials of a sweep in an Optuna study, which all processes of the same command share.

The number of a trial identifies its experiment and, in a grid, its combination, so a stopped trial keeps its number.
The sweep that runs a trial holds a lock on a file next to the experiments. The operating system releases the lock when
the sweep or its machine is lost, and the trial is then free for any other process.
"""

from __future__ import annotations

import fcntl
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from prototrain.config import differing
from prototrain.config.values import as_text, read_value
from prototrain.errors import SweepError
from prototrain.experiment.lock import LOCK, DirectoryLock, is_locked
from prototrain.sweeps.plan import Plan
from prototrain.sweeps.space import Dimension
from prototrain.sweeps.summary import Outcome, SweepResult
from prototrain.system.terminal import did_you_mean, format_duration, format_number, say

PRUNERS: Final = {
    "none": optuna.pruners.NopPruner,
    "median": optuna.pruners.MedianPruner,
    "halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
}
_STATES: Final = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}

Newest = Mapping[str, tuple[int, float]]  # (step, value) of the newest value of each scalar, by name


class Trial:
    """A trial that this process runs.

    `values` has the config values of the trial, by key of the space. `ending` is None while the trial runs.
    """

    def __init__(self, study: optuna.Study, trial: optuna.Trial, plan: Plan, lock: DirectoryLock) -> None:
        self._study, self._trial, self._objective, self._lock = study, trial, plan.objective, lock
        self._reported = dict(study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        self.number, self.experiment = trial.number, plan.experiment(trial.number)
        self.values = {key: _suggest(trial, key, dimension) for key, dimension in plan.space.items()}
        self.ending: str | None = None

    def report(self, newest: Newest) -> bool:
        """Report scalars to the study; returns whether the trial should end because it is pruned."""
        if self._objective not in newest:
            if self._objective.startswith("trn/") and not any(name.startswith("trn/") for name in newest):
                return False  # training scalars may be recorded less often than the validation runs
            known = ", ".join(newest) or "none"
            meant = did_you_mean(self._objective, newest)
            raise SweepError(f"trial {self.number} has no scalar {self._objective!r} to go by; it has: {known}{meant}")
        step, value = newest[self._objective]
        if self.ending is None and step not in self._reported:  # a resumed run measures some steps again
            self._trial.report(value, step)
            self._reported[step] = value
        if self.ending is None and self._trial.should_prune():
            self._tell("pruned", TrialState.PRUNED)
        return self.ending is not None

    def finish(self) -> str:
        """Finish a trial with the last value of the objective as its result; returns a line about the result."""
        step = max(self._reported, default=None)
        if self.ending is None:
            if step is None:
                return self.fail(f"the run has ended without measuring {self._objective}")
            if not math.isfinite(self._reported[step]):
                return self.fail(f"{self._objective} is {self._reported[step]} at step {step}")
            self._tell("finished", TrialState.COMPLETE, self._reported[step])
        self._lock.release()
        measured = "" if step is None else f": {self._objective} {format_number(self._reported[step])} at step {step}"
        return f"{self.ending}{measured}"

    def fail(self, error: str, output: str = "") -> str:
        """Mark a trial as failed, with an error and the end of its output; returns a line about the failure."""
        if self.ending is None:
            self._trial.set_user_attr("error", error)
            self._trial.set_user_attr("output", output)
            self._tell("failed", TrialState.FAIL)
        self._lock.release()
        return f"failed: {error}"

    def release(self, ending: str = "stopped") -> str:
        """Leave a stopped trial to any other process of the sweep; returns the ending."""
        self.ending = self.ending or ending
        self._lock.release()
        return ending

    def _tell(self, ending: str, state: TrialState, value: float | None = None) -> None:
        self.ending = ending
        self._study.tell(self._trial, value, state=state)


class Study:
    """The trials of a sweep. Close it at the end, so that other processes can continue the trials that have not ended.

    Raises:
        SweepError: the storage cannot be opened or holds another sweep of this name, or a trial's experiment exists.
    """

    def __init__(self, plan: Plan, *, storage: str, pruner: str) -> None:
        self.plan = plan
        self._taken: dict[int, Trial] = {}
        self._start = time.monotonic()
        try:
            plan.locks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SweepError(f"cannot use the directory {plan.directory}: {error.strerror}") from error
        with self._alone():
            self._study = optuna.create_study(
                storage=open_storage(storage),
                study_name=plan.name,
                direction="minimize" if plan.mode == "min" else "maximize",
                load_if_exists=True,
                pruner=PRUNERS[pruner](),
            )
            trials = self._study.get_trials(deepcopy=False)
            settings = self._study.user_attrs.get("settings")
            changes = {} if settings is None else dict(differing([settings, plan.settings()]))
            has_values = any(trial.intermediate_values for trial in trials)
            if settings is None or (list(changes) == ["objective"] and not has_values):  # it was misspelled
                self._study.set_user_attr("settings", plan.settings())
            elif changes:
                texts = [f"{key} was {then} and is {now}" for key, (then, now) in changes.items()]
                what = f"another sweep {plan.name!r} ({'; '.join(texts)})"
                raise SweepError(f"{without_password(storage)} holds {what}; choose another trainer.experiment_name")
            for number in range(len(trials), plan.total):
                if (foreign := plan.experiment(number)).exists():
                    cure = "delete it, or choose another trainer.experiment_name"
                    raise SweepError(f"{foreign} is there already and is no trial of this sweep; {cure}")

    def close(self) -> None:
        """Release the trials of this process that have not ended."""
        for trial in self._taken.values():
            trial.release()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep all other processes of the sweep out of a block."""
        with open(self.plan.locks / LOCK, "ab") as file:
            with suppress(OSError):  # the file system has no locks; the lock of a trial warns of that
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def next(self) -> Trial | None:
        """Take a trial that no process runs, stopped trials first; returns None if there is none now."""
        with self._alone():
            trials = self._study.get_trials(deepcopy=False)
            for trial in trials:
                if trial.state == TrialState.RUNNING and not self._lock_of(trial.number).is_dir():
                    raise self._elsewhere(trial.number)
                if self._is_left(trial) and not self._is_saving(trial):
                    return self._take(trial.number, partial(optuna.Trial, self._study, trial._trial_id))
            return None if len(trials) >= self.plan.total else self._take(len(trials), self._study.ask)

    def _take(self, number: int, begin: Callable[[], optuna.Trial]) -> Trial:
        lock = DirectoryLock(self._lock_of(number))
        if (said := lock.take()) is not None and said.startswith("WARNING"):
            say(said)
        # The seed depends on the number, so that machines with the same seed sample different values.
        seed = np.random.SeedSequence([self.plan.config["trainer.random_seed"], number]).generate_state(1)[0]
        sampler: optuna.samplers.BaseSampler = optuna.samplers.TPESampler(seed=int(seed))
        if self.plan.grid is not None:
            values = {key: as_text(value) for key, value in self.plan.grid[number].items()}
            with warnings.catch_warnings(action="ignore"):  # Optuna warns that it is experimental
                sampler = optuna.samplers.PartialFixedSampler(values, optuna.samplers.RandomSampler(int(seed)))
        self._study.sampler = sampler
        trial = begin()
        if trial.number != number:
            raise self._elsewhere(number)
        taken = self._taken[number] = Trial(self._study, trial, self.plan, lock)
        return taken

    def _elsewhere(self, number: int) -> SweepError:
        cure = "all commands of a sweep need the same trainer.experiment_base_dir, on shared storage"
        return SweepError(f"trial {number} has begun in another directory than {self.plan.directory}: {cure}")

    def is_waiting(self) -> bool:
        """Return whether a trial will be free soon, because its sweep has ended and its process is saving."""
        with self._alone():
            return any(self._is_left(trial) for trial in self._study.get_trials(deepcopy=False))

    def result(self) -> SweepResult:
        """Return the outcomes of all trials so far, and the best one."""
        found = []
        with self._alone():
            trials = self._study.get_trials(deepcopy=False)
            left = {trial.number for trial in trials if self._is_left(trial)}
        left |= {number for number, taken in self._taken.items() if taken.ending is not None}
        for trial in trials:
            step, space, state = trial.last_step, self.plan.space, _STATES.get(trial.state.name, "stopped")
            outcome = Outcome(
                number=trial.number,
                state="stopped" if state == "running" and trial.number in left else state,
                values={key: _decode(space[key], value) for key, value in trial.params.items() if key in space},
                objective=None if step is None else trial.intermediate_values[step],
                step=step,
                directory=self.plan.experiment(trial.number).directory,
                error=trial.user_attrs.get("error"),
            )
            found.append(outcome)
        finished = [outcome for outcome in found if outcome.state == "finished"]
        return SweepResult(found, min(finished, key=lambda outcome: self.plan.rank(outcome.objective), default=None))

    def progress(self, number: int, ending: str) -> str:
        """Describe a trial that has just ended, with the number of ended trials, the best one, and the time left."""
        result = self.result()
        done = {trial.number for trial in result.trials if trial.state in ("finished", "pruned", "failed")}
        if number not in done:  # it was stopped, and continues later
            return f"trial {number} {ending}"
        facts = [f"{len(done)} of {self.plan.total}"]
        if (best := result.best) is not None and best.objective is not None:
            facts.append(f"best {format_number(best.objective)} in trial {best.number}")
        if left := self.plan.total - len(done):
            of_each = (time.monotonic() - self._start) / len(done & self._taken.keys())
            facts.append(f"about {format_duration(of_each * left)} left")
        return f"trial {number} {ending} ({', '.join(facts)})"

    def _lock_of(self, number: int) -> Path:
        return self.plan.locks / str(number)

    def _is_left(self, trial: FrozenTrial) -> bool:
        """Return whether a trial has not ended, and the process that ran it has given it back or is gone."""
        is_running = trial.state == TrialState.RUNNING and trial.number not in self._taken
        return is_running and not is_locked(self._lock_of(trial.number) / LOCK)

    def _is_saving(self, trial: FrozenTrial) -> bool:
        # The check takes the lock for a moment, so it must not be called for a trial that is starting.
        return is_locked(self.plan.experiment(trial.number).directory / LOCK)


def _suggest(trial: optuna.Trial, key: str, dimension: Dimension) -> Any:
    """Let Optuna choose a value, or return the value that it chose before."""
    if dimension.kind == "choice":
        # As texts, because a study cannot hold lists, and cannot tell 1 from True.
        return _decode(dimension, trial.suggest_categorical(key, dimension.texts))
    low, high = dimension.values
    if dimension.kind == "int":
        return trial.suggest_int(key, low, high)
    return trial.suggest_float(key, low, high, log=dimension.kind == "log")


def _decode(dimension: Dimension, param: Any) -> Any:
    return read_value(param) if dimension.kind == "choice" else param


def sqlite_url(path: Path) -> str:
    """Return the URL of an SQLite file."""
    url = URL.create("sqlite", database=str(path)).render_as_string()
    return url.replace("{", "{{").replace("}", "}}")  # Optuna treats URLs as format strings


def open_storage(where: str) -> BaseStorage:
    """Open a storage, given as a URL such as ``postgresql://user@host/database``, or as the path of a journal file."""
    try:
        if "://" not in where:
            return JournalStorage(JournalFileBackend(where))
        is_file = make_url(where).get_backend_name() == "sqlite"
        options = {"connect_args": {"timeout": 60}} if is_file else {"pool_pre_ping": True}
        return RDBStorage(where, engine_kwargs=options)
    except Exception as error:  # a damaged file, or one that is no journal, raises almost anything
        raise SweepError(f"cannot open the storage {without_password(where)}: {_reason(error)}") from error


def without_password(where: str) -> str:
    """Return the URL of a storage without its password."""
    try:
        return make_url(where).render_as_string(hide_password=True)
    except ArgumentError:
        return where


def _reason(error: BaseException) -> str:
    """Return the line of a storage error that tells the cause."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    original = getattr(error, "orig", None) or error
    return (str(original).strip() or type(original).__name__).splitlines()[0]


@contextmanager
def reporting_failures(where: str) -> Iterator[None]:
    """Raise a `SweepError` with one line if an open storage fails."""
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        cure = "the same command continues once it is back"
        raise SweepError(f"the storage {without_password(where)} failed: {_reason(error)}; {cure}") from error
