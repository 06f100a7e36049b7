"""Runs as their directories show them from outside, also while they go on. Nothing here imports TensorFlow."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from prototrain.config.json_form import read_object
from prototrain.config.schema import LOCATION_KEYS
from prototrain.errors import ExperimentError
from prototrain.experiment import Experiment, checkpoint_steps
from prototrain.experiment.fetching import experiments_below
from prototrain.experiment.record import Attempt, Outcome, State, read_attempts
from prototrain.experiment.rows import rows_of
from prototrain.runs.metrics import Metrics, as_float, read_metrics
from prototrain.runs.series import Curve, Range

_NO_END = "killed, no end was recorded"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One experiment.

    Attributes:
        directory: where it lies.
        name: what it is called in tables.
        state: what became of it, or "running".
        reason: why it ended, where there is more to say than that it came to its end.
        step: completed steps; while it runs, after a kill or a failed start, those that have left a trace.
        total_steps: where it is to end; None if nowhere, or not known.
        started: when it was last started, in seconds since the epoch; None if not known.
        seconds: how long it took, over all times that it was started.
        durations: how long it took each time.
        checkpoint: the step of the newest checkpoint, if there is any.
        changes: (key, value, default) of what is not the model's own default; None if not known.
        config: the content of config.json; empty if there is none.
        environment: the content of environment.json.
        attempts: of the run, each from one start to the next stop.
        metrics: what has become of its scalars over the steps.
    """

    directory: Path
    name: str
    state: State
    reason: str | None
    step: int
    total_steps: int | None
    started: float | None
    seconds: float
    durations: list[float]
    checkpoint: int | None
    changes: list[tuple[str, Any, Any]] | None
    config: dict[str, Any]
    environment: dict[str, Any]
    attempts: list[Attempt]
    metrics: Metrics

    @cached_property
    def ranges(self) -> dict[str, Range]:
        """Every scalar's last value and extremes, by name."""
        return {name: series.range for name, series in self.metrics.series.items()}

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """(step, value) pairs by name; where there are very many, as few as show the same, all peaks among them."""
        metrics = self.metrics
        if not metrics.has_curves:
            with _reading(self.directory):
                metrics = read_metrics(Experiment(self.directory).metrics)
        return {name: series.curve for name, series in metrics.series.items()}

    @cached_property
    def scalars(self) -> dict[str, Curve]:
        """All (step, value) pairs by name, as they are in the file by now; of a million rows they take gigabytes."""
        with _reading(self.directory):
            return _curves(rows_of(Experiment(self.directory).metrics))

    def rows(self, names: Iterable[str]) -> Iterator[tuple[int, float, dict[str, float]]]:
        """(step, time, {name: value}) of the rows that have some of these scalars, one after the other; the time is in
        seconds since the epoch, or NaN."""
        wanted = set(names)
        with _reading(self.directory):
            for row in rows_of(Experiment(self.directory).metrics):
                values = {name: value for name, value in row.items() if name in wanted and _is_scalar(value)}
                if values:
                    time = row.get("time")
                    yield (
                        row["step"],
                        as_float(time) if isinstance(time, int | float) else math.nan,
                        {name: as_float(value) for name, value in values.items()},
                    )

    def elapsed(self, moment: float) -> float:
        """How long the run had taken at a moment, in seconds, over all times that it had been started by then.

        Args:
            moment: in seconds since the epoch.
        """
        begun = [place for place, attempt in enumerate(self.attempts) if attempt.started <= moment]
        if not begun:
            return 0.0
        return sum(self.durations[: begun[-1]]) + moment - self.attempts[begun[-1]].started

    @property
    def parts(self) -> list[Attempt]:
        """The earlier name of `attempts`."""
        return self.attempts

    @property
    def steps(self) -> str:
        """How many steps of how many, in words."""
        return str(self.step) if self.total_steps is None else f"{self.step} of {self.total_steps}"

    @property
    def ending(self) -> str:
        """The state and its reason, in words."""
        return str(Outcome(self.state, self.reason))


def is_experiment(directory: Path) -> bool:
    """Whether a run has been started in a directory, or it looks so: what is wrong with it is said when it is read."""
    return os.path.lexists(os.path.join(directory, "environment.json"))  # asked of every directory there is


def _fail(error: OSError) -> None:
    raise error


def find_runs(directory: str | Path, complain: Callable[[OSError], None] = _fail) -> Iterator[Path]:
    """The experiments at and below a directory, in the order of their names; links are not followed.

    Args:
        directory: where to look. Of a URL, the directories are given that stand for the experiments on this machine,
            for `read_run`.
        complain: called for a directory that cannot be read; by default the error is raised.
    """
    if (base := Experiment(directory)).remote is not None:
        yield from experiments_below(str(base))
        return
    for path, below, _ in os.walk(base.directory, onerror=complain):
        below.sort()
        if is_experiment(Path(path)):
            below.clear()
            yield Path(path)


def read_run(directory: str | Path, *, name: str | None = None, clock: Callable[[], float] = time.time) -> Run:
    """Read an experiment.

    Args:
        directory: where it lies; a URL, or the local directory that stands for one, is brought up to date first.
        name: what to call it; the directory as it is given if None.
        clock: returns seconds since the epoch.

    Raises:
        ExperimentError: it is no experiment, or a file cannot be read.
        ConfigError: a file is damaged.
    """
    experiment = Experiment(directory)
    experiment.fetch()
    directory = experiment.directory
    if not directory.is_dir():
        raise ExperimentError(f"there is no directory {experiment}")
    if not is_experiment(directory):
        raise ExperimentError(
            f"{experiment} is not an experiment: it has no environment.json; `prototrain runs DIR` lists those below "
            "DIR"
        )
    experiment.check_inside(deep=False)
    with _reading(directory):
        attempts = read_attempts(experiment.record)
        metrics = read_metrics(experiment.metrics, _moments(attempts), curves=False)
        checkpoints = checkpoint_steps(experiment.checkpoints)
        running = (not attempts or attempts[-1].state == "running") and experiment.is_running()
    has_config = (directory / "config.json").exists()
    traces = [*([] if metrics.last_step is None else [metrics.last_step]), *checkpoints[-1:]]
    last = attempts[-1] if attempts else Attempt(started=math.nan)
    ended = last.state != "running"
    durations = _durations(attempts, metrics, clock() if running else None)
    return Run(
        directory=directory,
        name=str(experiment) if name is None else name,
        state=last.state if ended or running else "interrupted",
        reason=last.reason if ended or running else _NO_END,
        step=max(traces, default=0) if last.step is None else last.step,
        total_steps=last.total_steps,
        started=last.started if attempts else None,
        seconds=sum(durations, 0.0),
        durations=durations,
        checkpoint=checkpoints[-1] if checkpoints else None,
        changes=_without_location(last.changes),
        config=read_object(directory / "config.json") if has_config else {},
        environment=read_object(experiment.environment),
        attempts=attempts,
        metrics=metrics,
    )


@contextmanager
def _reading(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExperimentError(f"cannot read {error.filename or directory}: {error.strerror}") from error


def settings(run: Run) -> dict[str, Any]:
    """A run's config without the keys that only say where the run lies."""
    return {key: value for key, value in run.config.items() if key not in LOCATION_KEYS}


def flat(entries: dict[str, Any]) -> dict[str, Any]:
    """What is in an object as JSON has it; the entries of objects inside of it have names with dots."""
    found: dict[str, Any] = {}
    for key, value in entries.items():
        found |= (
            {f"{key}.{name}": inner for name, inner in flat(value).items()} if isinstance(value, dict) else {key: value}
        )
    return found


def _without_location(changes: Any) -> list[tuple[str, Any, Any]] | None:
    return None if changes is None else [tuple(change) for change in changes if change[0] not in LOCATION_KEYS]


def _curves(rows: Iterable[dict[str, Any]]) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    for row in rows:
        for name, value in row.items():
            if name in ("step", "time") or not _is_scalar(value):
                continue
            curves.setdefault(name, []).append((row["step"], as_float(value)))
    return curves


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _moments(attempts: list[Attempt]) -> list[float]:
    """When others were started after attempts that have left no end."""
    return [later.started for one, later in pairwise(attempts) if one.seconds is None]


def _durations(attempts: list[Attempt], metrics: Metrics, now: float | None) -> list[float]:
    """What each attempt took; one without an end up to now, if it is the last and goes on, else to its last row."""
    found = []
    for number, attempt in enumerate(attempts):
        if attempt.seconds is not None:
            found.append(attempt.seconds)
            continue
        is_last = number == len(attempts) - 1
        until = math.inf if is_last else attempts[number + 1].started
        end = now if is_last and now is not None else metrics.latest_before[until]
        found.append(max(0.0, end - attempt.started))
    return found
