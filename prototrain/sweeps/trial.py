"""One trial of a sweep, from the side of the process that has taken it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from prototrain.config.values import read_value
from prototrain.errors import SweepError
from prototrain.sweeps.ownership import TrialLock, signature
from prototrain.sweeps.plan import Plan
from prototrain.sweeps.space import Choice, Range, Space, as_settings
from prototrain.system.wording import in_digits

Newest = Mapping[str, tuple[int, float]]
"""Scalars by name: the step of the newest value, and the value."""


class Trial:
    """A trial that this process runs.

    Args:
        study: Optuna's study.
        trial: Optuna's trial.
        plan: the sweep.
        lock: of the trial, taken.

    Attributes:
        number: from 0.
        values: of the keys of the space.
        settings: the values as `KEY=VALUE`.
        experiment: of the trial.
        ending: what the study knows of its result, in a word; None before.
    """

    def __init__(self, study: optuna.Study, trial: optuna.Trial, plan: Plan, lock: TrialLock) -> None:
        self._study = study
        self._trial = trial
        self._objective = plan.objective
        self._reported = dict(study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        self.lock = lock
        self.number = trial.number
        self.experiment = plan.experiment(trial.number)
        self.ending: str | None = None
        self.confirm()
        self.values = {key: _suggest(trial, key, dimension) for key, dimension in plan.space.items()}
        self.settings = as_settings(self.values)

    def confirm(self) -> None:
        """Tell the study that the trial has an owner, who is alive."""
        self._trial.set_user_attr("owner", signature())

    def report(self, newest: Newest) -> bool:
        """Tell the study how the trial does.

        Args:
            newest: what the run has measured.

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
        """The run has ended by itself: the last value that it measured is the trial's.

        Returns:
            what has become of the trial, in words.
        """
        step = max(self._reported, default=None)
        if self.ending is None:
            if step is None:
                return self.fail(f"the run has ended without measuring {self._objective}")
            if not math.isfinite(self._reported[step]):
                return self.fail(f"{self._objective} is {self._reported[step]} at step {step}")
            self._tell("finished", TrialState.COMPLETE, self._reported[step])
        self.lock.give_back(over=True)
        measured = "" if step is None else f": {self._objective} {in_digits(self._reported[step])} at step {step}"
        return f"{self.ending}{measured}"

    def fail(self, error: str, output: str = "") -> str:
        """The run has failed, for good.

        Args:
            error: why, in one line.
            output: the end of what the run has printed.

        Returns:
            what has become of the trial, in words.
        """
        with suppress(UpdateFinishedTrialError):
            self._trial.set_user_attr("error", error)
            self._trial.set_user_attr("output", output)
        self._tell("failed", TrialState.FAIL)
        self.lock.give_back(over=True)
        return f"failed: {error}"

    def release(self, killed: str | None = None) -> str:
        """The run was stopped before its end: whoever asks for a trial next goes on with it.

        Args:
            killed: the name of the signal that somebody else has sent, or None.

        Returns:
            what has become of the trial, in words.
        """
        with suppress(UpdateFinishedTrialError):
            self._trial.set_user_attr("owner", signature(alive=False))
        self.lock.give_back(over=self.ending is not None)
        return f"killed by {killed}" if killed else "stopped"

    @property
    def is_mine(self) -> bool:
        """Whether this process is still to say what becomes of the trial."""
        return self.lock.is_mine and self.ending is None

    def _tell(self, ending: str, state: TrialState, value: float | None = None) -> None:
        self.ending = ending
        self._study.tell(self._trial, value, state=state, skip_if_finished=True)


def read_values(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """The values that a trial's parameters in the study stand for."""
    return {key: _decode(space[key], value) for key, value in params.items() if key in space}


def _suggest(trial: optuna.Trial, key: str, dimension: Choice | Range) -> Any:
    """Have Optuna choose a value; one that was chosen before stays."""
    if isinstance(dimension, Choice):
        # As texts, because a study has no lists, and holds 1 and True for the same.
        return _decode(dimension, trial.suggest_categorical(key, dimension.texts))
    if dimension.kind == "int":
        return trial.suggest_int(key, int(dimension.low), int(dimension.high))
    return trial.suggest_float(key, dimension.low, dimension.high, log=dimension.kind == "log")


def _decode(dimension: Choice | Range, param: Any) -> Any:
    return read_value(param) if isinstance(dimension, Choice) else param
