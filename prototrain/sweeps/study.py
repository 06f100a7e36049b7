"""The trials of a sweep as Optuna's study holds them, shared by every process that runs the same command.

A trial that was stopped goes back into the queue of Optuna under its number, which stands for its experiment, and with
a grid for its combination. Heartbeats of Optuna are not used: journal files have none, and its retries get other
numbers. The attribute "owner" of a running trial is the sweep that runs it, and when that was last alive.
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
from prototrain.system.wording import in_digits

PRUNERS: Final = {
    "none": optuna.pruners.NopPruner,
    "median": optuna.pruners.MedianPruner,
    "halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
}
BEAT_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 5 * BEAT_SECONDS
"""How long an owner on another machine may be silent; far more than clocks of machines differ."""
_SETTLING_SECONDS: Final = 1.0
_STATES: Final = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "WAITING": "stopped"}

Newest = Mapping[str, tuple[int, float]]
"""Scalars by name: the step of the newest value, and the value."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The state and the result of a trial.

    Attributes:
        number: from 0.
        state: "finished", "pruned", "failed", "running", or "stopped" if the same command continues it.
        values: of the keys of the space.
        objective: the last value that was measured, or None.
        step: of that value.
        directory: of the trial's experiment.
        error: why it has failed.
    """

    number: int
    state: str
    values: Mapping[str, Any]
    objective: float | None
    step: int | None
    directory: Path
    error: str | None


class Trial:
    """A trial that this process runs, with `values` of the keys of the space; `ending` is None while it runs."""

    def __init__(self, study: optuna.Study, trial: optuna.Trial, plan: Plan) -> None:
        self._study, self._trial, self._objective = study, trial, plan.objective
        self._reported = dict(study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        self.number, self.experiment = trial.number, plan.experiment(trial.number)
        self.values = {key: _suggest(trial, key, dimension) for key, dimension in plan.space.items()}
        self.ending: str | None = None

    def report(self, newest: Newest) -> bool:
        """Report scalars to the study; returns whether the trial should end here."""
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
        """End a trial whose run is complete, with its last value as the result; returns how it ended, in words."""
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
        """End a trial whose run has failed, with a line and the end of its output; returns how it ended, in words."""
        with suppress(UpdateFinishedTrialError):
            self._trial.set_user_attr("error", error)
            self._trial.set_user_attr("output", output)
        self._tell("failed", TrialState.FAIL)
        return f"failed: {error}"

    def release(self, ending: str = "stopped") -> str:
        """Leave a trial that was stopped before its end to the next sweep; returns how it ended, in words."""
        self.ending = ending
        return ending

    def _tell(self, ending: str, state: TrialState, value: float | None = None) -> None:
        self.ending = ending
        self._study.tell(self._trial, value, state=state, skip_if_finished=True)


class Study:
    """The trials of a sweep. Enter it as a context manager while trials run.

    `storage` is a URL or the path of a journal file, `pruner` a name among `PRUNERS`. Raises a `SweepError` if the
    storage cannot be opened or holds another sweep of this name, or if an experiment is in the way.
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
        # Before the trials are read: an experiment that another process makes in between belongs to a trial.
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
        if settings is None or (list(differences) == ["objective"] and not is_measured):  # its name was wrong
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
        """The trials that this sweep took, without those that another took over because this one was silent."""
        taken = [trial for trial in self._trials() if trial.number in self._taken]
        return [trial for trial in taken if (trial.user_attrs.get("owner") or {}).get("id") == self._id]

    def _sign(self, trial: FrozenTrial | optuna.Trial) -> None:
        """Write down that this sweep runs a trial, and is alive."""
        owner = {"id": self._id, "host": platform.node(), "sweep": os.getpid(), "alive": time.time()}
        with suppress(UpdateFinishedTrialError):
            self._study._storage.set_trial_user_attr(trial._trial_id, "owner", owner)

    def _put_back(self, trial: FrozenTrial) -> None:
        """Put a running trial into the queue of the study, for whichever process asks next."""
        if trial.state == TrialState.RUNNING:
            with suppress(UpdateFinishedTrialError):
                self._study._storage.set_trial_user_attr(trial._trial_id, "owner", None)
                self._study._storage.set_trial_state_values(trial._trial_id, state=TrialState.WAITING)

    def next(self) -> Trial | None:
        """Take a trial that no process runs, one that was stopped before its end first; None if there is none now."""
        for trial in self._trials():
            # A trial that begins must not be looked at: that takes its lock for a moment.
            if self._is_left(trial) and not is_locked(self.plan.experiment(trial.number).directory / LOCK):
                # Of several processes that sign it, the last one has it.
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
        # The seed depends on the number, so that machines with one seed do not agree.
        seed = np.random.SeedSequence([self.plan.config["trainer.random_seed"], begun.number]).generate_state(1)[0]
        sampler: optuna.samplers.BaseSampler = optuna.samplers.TPESampler(seed=int(seed))
        if self.plan.grid is not None:
            values = {key: as_text(value) for key, value in self.plan.grid[begun.number].items()}
            with warnings.catch_warnings(action="ignore"):  # Optuna calls it experimental
                sampler = optuna.samplers.PartialFixedSampler(values, optuna.samplers.RandomSampler(int(seed)))
        self._study.sampler = sampler
        taken = self._taken[begun.number] = Trial(self._study, begun, self.plan)
        return taken

    def is_waiting(self) -> bool:
        """Whether a trial will be free soon: its sweep has ended, and its process is saving."""
        return any(self._is_left(trial) for trial in self._trials())

    def outcomes(self) -> list[Outcome]:
        """The outcome of every trial so far."""
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
        """Whether a trial has not ended, and the sweep that ran it was killed."""
        if trial.state != TrialState.RUNNING or trial.number in self._taken:
            return False
        begun = 0.0 if trial.datetime_start is None else trial.datetime_start.timestamp()
        owner = trial.user_attrs.get("owner") or {"host": None, "alive": begun}  # one that is about to be signed
        is_gone = owner["host"] == platform.node() and not psutil.pid_exists(owner["sweep"])
        return is_gone or time.time() - float(owner["alive"]) > GRACE_SECONDS


def _suggest(trial: optuna.Trial, key: str, dimension: Dimension) -> Any:
    """Let Optuna choose a value; one that was chosen before stays."""
    if dimension.kind == "choice":
        # As texts, because a study holds no lists, and takes 1 and True for the same.
        return _decode(dimension, trial.suggest_categorical(key, dimension.texts))
    low, high = dimension.values
    if dimension.kind == "int":
        return trial.suggest_int(key, low, high)
    return trial.suggest_float(key, low, high, log=dimension.kind == "log")


def _decode(dimension: Dimension, param: Any) -> Any:
    return read_value(param) if dimension.kind == "choice" else param
