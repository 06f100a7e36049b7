"""The trials of a sweep as the study holds them, shared by every process that runs the same command."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from prototrain.config.values import as_text
from prototrain.errors import SweepError
from prototrain.experiment.lock import LOCK
from prototrain.sweeps.ownership import ME, Heartbeat, TrialLock, has_ended, is_held, is_silent, signature
from prototrain.sweeps.plan import Plan
from prototrain.sweeps.storage import FAILURES, open_storage, shown
from prototrain.sweeps.trial import Trial, read_values

PRUNERS: Final = {
    "none": optuna.pruners.NopPruner,
    "median": optuna.pruners.MedianPruner,
    "halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
}
_SETTLING_SECONDS: Final = 1.0
_STATES: Final = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is known of a trial.

    Attributes:
        number: from 0.
        state: "finished", "pruned", "failed", "running", or "stopped" where the same command goes on with it.
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


class Study:
    """The trials of a sweep. Enter it as a context manager while trials run.

    Every trial has a number that no other one has, whichever machine asks for it: with a grid that is the number of
    the combination, which is how each is run exactly once.

    Args:
        plan: the sweep.
        storage: a URL, or the path of a journal file.
        pruner: a name among `PRUNERS`.

    Raises:
        SweepError: the storage cannot be opened, it holds another sweep of this name, or an experiment is in the way.
    """

    def __init__(self, plan: Plan, *, storage: str, pruner: str) -> None:
        self.plan = plan
        self._storage = storage
        self._taken: dict[int, Trial] = {}
        self._heartbeat = Heartbeat(self._confirm, FAILURES)
        try:
            plan.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SweepError(f"cannot use the directory {plan.directory}: {error.strerror}") from error
        # Before the trials are read: what another process begins in between has a trial.
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

    def __enter__(self) -> Study:
        self._heartbeat.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._heartbeat.__exit__()

    def next(self) -> Trial | None:
        """Take a trial that nobody runs, one that was stopped before its end first.

        Returns:
            None if there is none at the moment.
        """
        trials = self._trials()
        for trial in trials:
            if trial.state == TrialState.RUNNING and trial.number not in self._taken:
                taken = self._take_over(trial)
                if taken is not None:
                    return taken
        return self._begin() if len(trials) < self.plan.total else None

    def is_waiting(self) -> bool:
        """Whether a trial is about to become free: its sweep has ended, and its own process is still saving."""
        running = (trial for trial in self._trials() if trial.state == TrialState.RUNNING)
        return any(trial.number not in self._taken and not self._is_alive(trial) for trial in running)

    def outcomes(self) -> list[Outcome]:
        """What is known of every trial so far."""
        return [self._outcome(trial) for trial in self._trials()]

    def _trials(self) -> list[FrozenTrial]:
        return [trial for trial in self._study.get_trials(deepcopy=False) if "surplus" not in trial.user_attrs]

    def _check_settings(self) -> None:
        plan = self.plan
        settings = self._study.user_attrs.get("settings")
        if settings is None:
            self._study.set_user_attr("settings", plan.settings())
            return
        differences = plan.differences(settings)
        if list(differences) == ["objective"] and not any(trial.intermediate_values for trial in self._trials()):
            self._study.set_user_attr("settings", plan.settings())
        elif differences:
            raise SweepError(
                f"{shown(self._storage)} holds another sweep {plan.name!r} ({'; '.join(differences.values())}); "
                "choose another trainer.experiment_name"
            )

    # -- taking a trial -----------------------------------------------------------------------------------------------

    def _begin(self) -> Trial | None:
        trial = self._study.ask()
        if sum(other.number < trial.number for other in self._trials()) >= self.plan.total:
            trial.set_user_attr("surplus", True)  # another process has taken the last one meanwhile
            self._study.tell(trial, state=TrialState.FAIL)
            return None
        lock = self._lock(trial.number)
        if not lock.take():
            raise SweepError(f"{lock.path} is held by the run of another sweep's trial; wait for its end")
        return self._take(trial, lock)

    def _take_over(self, trial: FrozenTrial) -> Trial | None:
        """Take a trial from an owner that is gone."""
        lock = self._lock(trial.number)
        here = lock.exists()
        try:
            if (not here and not self._was_left(trial)) or not lock.take():
                return None
            if self._is_free(trial.number) and (here or self._outlasts_others(trial)):
                return self._take(optuna.Trial(self._study, trial._trial_id), lock)
        except UpdateFinishedTrialError:
            pass  # its owner has finished it meanwhile
        lock.give_back(over=False)
        return None

    def _was_left(self, trial: FrozenTrial) -> bool:
        """Whether the owner of a trial that was begun on another file system is gone."""
        owner = trial.user_attrs.get("owner")
        if owner is None:  # it has just begun, or has died right then: it gets the usual time
            self._sign(trial, {**signature(), "id": ""})
        return owner is not None and is_silent(owner)

    def _is_free(self, number: int) -> bool:
        """Whether a trial has not ended, and nobody trains in its experiment."""
        running = self._study.get_trials(deepcopy=False)[number].state == TrialState.RUNNING
        return running and not is_held(self.plan.experiment(number).directory / LOCK)

    def _outlasts_others(self, trial: FrozenTrial) -> bool:
        """Whether this process gets a trial for which no lock decides: of several, the last to sign has it."""
        self._sign(trial, signature())
        time.sleep(_SETTLING_SECONDS)
        return bool(self._study.get_trials(deepcopy=False)[trial.number].user_attrs["owner"]["id"] == ME)

    def _sign(self, trial: FrozenTrial, owner: Mapping[str, Any]) -> None:
        optuna.Trial(self._study, trial._trial_id).set_user_attr("owner", dict(owner))

    def _take(self, trial: optuna.Trial, lock: TrialLock) -> Trial:
        self._study.sampler = self._sampler(trial.number)
        taken = self._taken[trial.number] = Trial(self._study, trial, self.plan, lock)
        return taken

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """What chooses a trial's values; it depends on the number, so that machines with one seed do not agree."""
        if self.plan.grid is not None:
            return _Combination(self.plan.grid[number])
        seed = np.random.SeedSequence([self.plan.config["trainer.random_seed"], number]).generate_state(1)[0]
        return optuna.samplers.TPESampler(seed=int(seed))

    def _lock(self, number: int) -> TrialLock:
        return TrialLock(self.plan.directory / f".{self.plan.name}-{number}.lock")

    # -- looking at trials --------------------------------------------------------------------------------------------

    def _is_alive(self, trial: FrozenTrial) -> bool:
        owner = trial.user_attrs.get("owner")
        lock = self._lock(trial.number)
        if lock.exists():
            orphaned = owner is not None and has_ended(owner)
            return not orphaned and (lock.is_taken() or is_held(self.plan.experiment(trial.number).directory / LOCK))
        return owner is not None and not is_silent(owner)

    def _confirm(self) -> None:
        for trial in list(self._taken.values()):
            if trial.is_mine:
                trial.confirm()

    def _outcome(self, trial: FrozenTrial) -> Outcome:
        running = "running" if trial.state == TrialState.RUNNING and self._is_alive(trial) else "stopped"
        step = trial.last_step
        return Outcome(
            number=trial.number,
            state=_STATES.get(trial.state, running),
            values=read_values(self.plan.space, trial.params),
            objective=None if step is None else trial.intermediate_values[step],
            step=step,
            directory=self.plan.experiment(trial.number).directory,
            error=trial.user_attrs.get("error"),
        )


class _Combination(optuna.samplers.BaseSampler):
    """Gives the values of one combination of a grid.

    Args:
        values: by key.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return as_text(self._values[param_name])
