"""The trials of a sweep as the study holds them, shared by every process that runs the same command.

Optuna's heartbeats are not used: journal files have none, and its retries get other numbers. The number stands for
a trial's experiment, and with a grid for its combination, so a trial that was stopped stays the same trial. The
attribute "owner" tells which sweep runs it, and when that was last alive.
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
from prototrain.sweeps.space import Dimension, as_settings
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
_STATES: Final = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}

Newest = Mapping[str, tuple[int, float]]
"""Scalars by name: the step of the newest value, and the value."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is known of a trial.

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
    """A trial that this process runs.

    Attributes:
        number: from 0.
        values: of the keys of the space.
        settings: the values as `KEY=VALUE`.
        experiment: of the trial.
        ending: how the study knows its result, in a word; None before.
        is_released: whether it was given back before its end.
    """

    def __init__(self, study: optuna.Study, trial: optuna.Trial, plan: Plan, owner: str) -> None:
        self._study, self._trial, self._objective, self._owner = study, trial, plan.objective, owner
        self._reported = dict(study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        self.number, self.experiment = trial.number, plan.experiment(trial.number)
        self.ending: str | None = None
        self.is_released = False
        self.sign()
        self.values = {key: _suggest(trial, key, dimension) for key, dimension in plan.space.items()}
        self.settings = as_settings(self.values)

    def sign(self) -> None:
        """Tell the study that the trial has an owner, who is alive."""
        if self.ending is None and not self.is_released:
            sign(self._trial, self._owner)

    def report(self, newest: Newest) -> bool:
        """Report the newest scalars of the run to the study.

        Returns:
            whether the trial should end here: it is pruned, or another process has finished it.

        Raises:
            SweepError: the run does not measure the objective.
        """
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
        """End a trial whose run is complete: its last value is the trial's; returns how it ended, in words."""
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

    def release(self, killed: str | None = None) -> str:
        """Give back a trial that was stopped before its end: whichever process asks next continues it.

        `killed` is the signal that ended it, unless the sweep has sent it. Returns how it ended, in words.
        """
        self.is_released = True
        with suppress(UpdateFinishedTrialError):
            sign(self._trial, "", alive=False)
        return f"killed by {killed}" if killed else "stopped"

    def _tell(self, ending: str, state: TrialState, value: float | None = None) -> None:
        self.ending = ending
        self._study.tell(self._trial, value, state=state, skip_if_finished=True)


class Study:
    """The trials of a sweep. Enter it as a context manager while trials run.

    Args:
        plan: the sweep.
        storage: a URL, or the path of a journal file.
        pruner: a name among `PRUNERS`.

    Raises:
        SweepError: the storage cannot be opened, it holds another sweep of this name, or an experiment is in the way.
    """

    def __init__(self, plan: Plan, *, storage: str, pruner: str) -> None:
        self.plan = plan
        self._storage, self._id = storage, uuid.uuid4().hex
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
        self._check_settings()
        begun = {trial.number for trial in self._study.get_trials(deepcopy=False)}
        foreign = [plan.experiment(number) for number in present if number not in begun]
        if foreign:
            raise SweepError(
                f"{foreign[0]} is there already and is no trial of this sweep; "
                "delete it, or choose another trainer.experiment_name"
            )

    def _check_settings(self) -> None:
        plan, settings = self.plan, self._study.user_attrs.get("settings")
        differences = {} if settings is None else plan.differences(settings)
        is_measured = any(trial.intermediate_values for trial in self._trials())
        if settings is None or (list(differences) == ["objective"] and not is_measured):  # its name was wrong
            self._study.set_user_attr("settings", plan.settings())
        elif differences:
            raise SweepError(
                f"{shown(self._storage)} holds another sweep {plan.name!r} ({'; '.join(differences.values())}); "
                "choose another trainer.experiment_name"
            )

    def __enter__(self) -> Study:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT_SECONDS):
            for trial in list(self._taken.values()):
                with suppress(*FAILURES):  # the next beat may succeed
                    trial.sign()

    def next(self) -> Trial | None:
        """Take a trial that no process runs, one that was stopped before its end first; None if there is none now."""
        trials = self._trials()
        for trial in trials:
            # A trial that begins must not be looked at: that takes its lock for a moment.
            if not self._is_left(trial) or is_locked(self.plan.experiment(trial.number).directory / LOCK):
                continue
            if self._outlasts_others(trial):
                return self._take(optuna.Trial(self._study, trial._trial_id))
        if len(trials) >= self.plan.total:
            return None
        begun = self._study.ask()
        if sum(other.number < begun.number for other in self._trials()) < self.plan.total:
            return self._take(begun)
        begun.set_user_attr("surplus", True)  # another process has taken the last one
        self._study.tell(begun, state=TrialState.FAIL)
        return None

    def is_waiting(self) -> bool:
        """Whether a trial will be free soon: its sweep has ended, and its process is saving."""
        return any(self._is_left(trial) for trial in self._trials())

    def outcomes(self) -> list[Outcome]:
        """What is known of every trial so far."""
        return [self._outcome(trial) for trial in self._trials()]

    def _trials(self) -> list[FrozenTrial]:
        return [trial for trial in self._study.get_trials(deepcopy=False) if "surplus" not in trial.user_attrs]

    def _take(self, trial: optuna.Trial) -> Trial:
        # The seed depends on the number, so that machines with one seed do not agree.
        seed = np.random.SeedSequence([self.plan.config["trainer.random_seed"], trial.number]).generate_state(1)[0]
        sampler: optuna.samplers.BaseSampler = optuna.samplers.TPESampler(seed=int(seed))
        if self.plan.grid is not None:
            values = {key: as_text(value) for key, value in self.plan.grid[trial.number].items()}
            with warnings.catch_warnings(action="ignore"):  # Optuna calls it experimental
                sampler = optuna.samplers.PartialFixedSampler(values, optuna.samplers.RandomSampler(int(seed)))
        self._study.sampler = sampler
        taken = self._taken[trial.number] = Trial(self._study, trial, self.plan, self._id)
        return taken

    def _is_left(self, trial: FrozenTrial) -> bool:
        """Whether a trial has not ended, and the sweep that ran it was stopped or killed."""
        if trial.state != TrialState.RUNNING or trial.number in self._taken:
            return False
        owner = trial.user_attrs.get("owner")
        if owner is None:  # another process is about to sign it, or was killed right then: it gets the usual time
            sign(optuna.Trial(self._study, trial._trial_id), "")
            return False
        is_gone = owner["host"] == platform.node() and not psutil.pid_exists(owner["sweep"])
        return is_gone or time.time() - float(owner["alive"]) > GRACE_SECONDS

    def _outlasts_others(self, trial: FrozenTrial) -> bool:
        """Whether this sweep gets a trial that was left: of several that sign it, the last one does."""
        try:
            sign(optuna.Trial(self._study, trial._trial_id), self._id)
        except UpdateFinishedTrialError:
            return False
        time.sleep(_SETTLING_SECONDS)
        found = self._study.get_trials(deepcopy=False)[trial.number]
        return found.state == TrialState.RUNNING and found.user_attrs["owner"]["id"] == self._id

    def _outcome(self, trial: FrozenTrial) -> Outcome:
        step, space, taken = trial.last_step, self.plan.space, self._taken.get(trial.number)
        is_stopped = self._is_left(trial) if taken is None else taken.is_released
        return Outcome(
            number=trial.number,
            state=_STATES.get(trial.state, "stopped" if is_stopped else "running"),
            values={key: _decode(space[key], value) for key, value in trial.params.items() if key in space},
            objective=None if step is None else trial.intermediate_values[step],
            step=step,
            directory=self.plan.experiment(trial.number).directory,
            error=trial.user_attrs.get("error"),
        )


def sign(trial: optuna.Trial, owner: str, *, alive: bool = True) -> None:
    """Write down which sweep runs a trial, or with `alive=False` give it back.

    Raises:
        UpdateFinishedTrialError: another process has finished the trial.
    """
    about = {"id": owner, "host": platform.node(), "sweep": os.getpid(), "alive": time.time() if alive else 0.0}
    trial.set_user_attr("owner", about)


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
