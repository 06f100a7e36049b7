"""The trials of a sweep in an Optuna study, which all processes of the same command share.

A stopped trial returns to Optuna's queue under its number, which identifies its experiment and, in a grid, its
combination. Optuna's heartbeats are not used, because journal files have none, and a retried trial would get another
number. Instead, the attribute "owner" of a running trial names its sweep and the time when that was last alive.
"""

from __future__ import annotations

import math
import os
import platform
import threading
import time
import uuid
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import optuna
import psutil
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from prototrain.config.values import as_text, read_value
from prototrain.errors import SweepError
from prototrain.experiment.lock import LOCK, is_locked
from prototrain.sweeps.plan import Plan
from prototrain.sweeps.space import Dimension
from prototrain.sweeps.storage import FAILURES, open_storage, shown
from prototrain.system.terminal import in_digits

PRUNERS: Final = {
    "none": optuna.pruners.NopPruner,
    "median": optuna.pruners.MedianPruner,
    "halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
}
BEAT_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 5 * BEAT_SECONDS
"""How long an owner on another machine may be silent. Much longer than any difference between clocks."""
_SETTLING_SECONDS: Final = 1.0
_STATES: Final = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "WAITING": "stopped"}

Newest = Mapping[str, tuple[int, float]]
"""(step, value) of the newest value of each scalar, by name."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The state and the result of a trial.

    Attributes:
        number: the number of the trial, from 0.
        state: "finished", "pruned", "failed", "running", or "stopped" if the same command continues it.
        values: the config values of the trial, by key of the space.
        objective: the last value of the objective, or None.
        step: the step of that value, or None.
        directory: the directory of the trial's experiment.
        error: the reason of a failure, or None.
    """

    number: int
    state: str
    values: Mapping[str, Any]
    objective: float | None
    step: int | None
    directory: Path
    error: str | None


class Trial:
    """A trial that this process runs.

    `values` has the config values of the trial, by key of the space. `ending` is None while the trial runs.
    """

    def __init__(self, study: optuna.Study, trial: optuna.Trial, plan: Plan) -> None:
        self._study, self._trial, self._objective = study, trial, plan.objective
        self._reported = dict(study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        self.number, self.experiment = trial.number, plan.experiment(trial.number)
        self.values = {key: _suggest(trial, key, dimension) for key, dimension in plan.space.items()}
        self.ending: str | None = None

    def report(self, newest: Newest) -> bool:
        """Report scalars to the study; returns whether the trial should end."""
        if self._objective not in newest:
            known = ", ".join(newest) or "none"
            raise SweepError(f"trial {self.number} has no scalar {self._objective!r} to go by; it has: {known}")
        step, value = newest[self._objective]
        try:
            if self.ending is None and step not in self._reported:  # a resumed run measures some steps again
                self._trial.report(value, step)
                self._reported[step] = value
            if self.ending is None and self._trial.should_prune():
                self._tell("pruned", TrialState.PRUNED)
        except UpdateFinishedTrialError:
            self.ending = "finished by another process"
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
        measured = "" if step is None else f": {self._objective} {in_digits(self._reported[step])} at step {step}"
        return f"{self.ending}{measured}"

    def fail(self, error: str, output: str = "") -> str:
        """Mark a trial as failed, with an error and the end of its output; returns a line about the failure."""
        with suppress(UpdateFinishedTrialError):
            self._trial.set_user_attr("error", error)
            self._trial.set_user_attr("output", output)
        self._tell("failed", TrialState.FAIL)
        return f"failed: {error}"

    def release(self, ending: str = "stopped") -> str:
        """Leave a stopped trial to the next sweep; returns the ending."""
        self.ending = ending
        return ending

    def _tell(self, ending: str, state: TrialState, value: float | None = None) -> None:
        self.ending = ending
        self._study.tell(self._trial, value, state=state, skip_if_finished=True)


class Study:
    """The trials of a sweep. Use it as a context manager while trials run.

    Args:
        plan: the plan of the sweep.
        storage: a URL, or the path of a journal file.
        pruner: a name in `PRUNERS`.

    Raises:
        SweepError: the storage cannot be opened or holds another sweep of this name, or an experiment of a trial
            already exists and is not part of the sweep.
    """

    def __init__(self, plan: Plan, *, storage: str, pruner: str) -> None:
        self.plan = plan
        self._id = uuid.uuid4().hex
        self._taken: dict[int, Trial] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="sweep-heartbeat", daemon=True)
        try:
            plan.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SweepError(f"cannot use the directory {plan.directory}: {error.strerror}") from error
        # Listed before the trials are read, because another process may create the experiment of a trial in between.
        present = [number for number in range(plan.total) if plan.experiment(number).exists()]
        self._study = optuna.create_study(
            storage=open_storage(storage),
            study_name=plan.name,
            direction="minimize" if plan.mode == "min" else "maximize",
            load_if_exists=True,
            pruner=PRUNERS[pruner](),
        )
        settings = self._study.user_attrs.get("settings")
        differences = {} if settings is None else plan.differences(settings)
        is_measured = any(trial.intermediate_values for trial in self._trials())
        if settings is None or (list(differences) == ["objective"] and not is_measured):  # the objective was misspelled
            self._study.set_user_attr("settings", plan.settings())
        elif differences:
            raise SweepError(
                f"{shown(storage)} holds another sweep {plan.name!r} ({'; '.join(differences.values())}); "
                "choose another trainer.experiment_name"
            )
        begun = {trial.number for trial in self._study.get_trials(deepcopy=False)}
        if foreign := [plan.experiment(number) for number in present if number not in begun]:
            raise SweepError(
                f"{foreign[0]} is there already and is no trial of this sweep; "
                "delete it, or choose another trainer.experiment_name"
            )

    def __enter__(self) -> Study:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        with suppress(*FAILURES):
            for trial in self._own():
                self._put_back(trial)

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT_SECONDS):
            with suppress(*FAILURES):  # the next beat may succeed
                for trial in self._own():
                    self._sign(trial)

    def _own(self) -> list[FrozenTrial]:
        """Return the trials of this sweep, without those that another sweep took over because this one was silent."""
        taken = [trial for trial in self._trials() if trial.number in self._taken]
        return [trial for trial in taken if (trial.user_attrs.get("owner") or {}).get("id") == self._id]

    def _sign(self, trial: FrozenTrial | optuna.Trial) -> None:
        """Record that this sweep runs a trial and is alive."""
        owner = {"id": self._id, "host": platform.node(), "sweep": os.getpid(), "alive": time.time()}
        with suppress(UpdateFinishedTrialError):
            self._study._storage.set_trial_user_attr(trial._trial_id, "owner", owner)

    def _put_back(self, trial: FrozenTrial) -> None:
        """Put a running trial back into the queue of the study, for the next process that asks."""
        if trial.state == TrialState.RUNNING:
            with suppress(UpdateFinishedTrialError):
                self._study._storage.set_trial_user_attr(trial._trial_id, "owner", None)
                self._study._storage.set_trial_state_values(trial._trial_id, state=TrialState.WAITING)

    def next(self) -> Trial | None:
        """Take a trial that no process runs, stopped trials first; returns None if there is none now."""
        for trial in self._trials():
            # `is_locked` takes the lock for a moment, so it must not be called for a trial that is starting.
            if self._is_left(trial) and not is_locked(self.plan.experiment(trial.number).directory / LOCK):
                # If several processes sign it, the last one owns it.
                self._sign(trial)
                time.sleep(_SETTLING_SECONDS)
                now = self._study.get_trials(deepcopy=False)[trial.number]
                if (now.user_attrs["owner"] or {}).get("id") == self._id:
                    self._put_back(now)
        trials = self._trials()
        if len(trials) >= self.plan.total and all(trial.state != TrialState.WAITING for trial in trials):
            return None
        begun = self._study.ask()
        if sum(other.number < begun.number for other in self._trials()) >= self.plan.total:
            begun.set_user_attr("surplus", True)  # another process has taken the last one
            self._study.tell(begun, state=TrialState.FAIL)
            return None
        self._sign(begun)
        # The seed depends on the number, so that machines with the same seed sample different values.
        seed = np.random.SeedSequence([self.plan.config["trainer.random_seed"], begun.number]).generate_state(1)[0]
        sampler: optuna.samplers.BaseSampler = optuna.samplers.TPESampler(seed=int(seed))
        if self.plan.grid is not None:
            values = {key: as_text(value) for key, value in self.plan.grid[begun.number].items()}
            with warnings.catch_warnings(action="ignore"):  # Optuna warns that it is experimental
                sampler = optuna.samplers.PartialFixedSampler(values, optuna.samplers.RandomSampler(int(seed)))
        self._study.sampler = sampler
        taken = self._taken[begun.number] = Trial(self._study, begun, self.plan)
        return taken

    def is_waiting(self) -> bool:
        """Return whether a trial will be free soon, because its sweep has ended and its process is saving."""
        return any(self._is_left(trial) for trial in self._trials())

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of every trial so far."""
        found = []
        for trial in self._trials():
            step, space, taken = trial.last_step, self.plan.space, self._taken.get(trial.number)
            is_stopped = self._is_left(trial) if taken is None else taken.ending is not None
            outcome = Outcome(
                number=trial.number,
                state=_STATES.get(trial.state.name, "stopped" if is_stopped else "running"),
                values={key: _decode(space[key], value) for key, value in trial.params.items() if key in space},
                objective=None if step is None else trial.intermediate_values[step],
                step=step,
                directory=self.plan.experiment(trial.number).directory,
                error=trial.user_attrs.get("error"),
            )
            found.append(outcome)
        return found

    def _trials(self) -> list[FrozenTrial]:
        return [trial for trial in self._study.get_trials(deepcopy=False) if "surplus" not in trial.user_attrs]

    def _is_left(self, trial: FrozenTrial) -> bool:
        """Return whether a trial has not ended although the sweep that ran it was killed."""
        if trial.state != TrialState.RUNNING or trial.number in self._taken:
            return False
        begun = 0.0 if trial.datetime_start is None else trial.datetime_start.timestamp()
        owner = trial.user_attrs.get("owner") or {"host": None, "alive": begun}  # not signed yet
        is_gone = owner["host"] == platform.node() and not psutil.pid_exists(owner["sweep"])
        return is_gone or time.time() - float(owner["alive"]) > GRACE_SECONDS


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
