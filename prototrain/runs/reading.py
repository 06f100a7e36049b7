"""Reads experiments from their directories, even while they run. Nothing here imports TensorFlow."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from prototrain.config.schema import LOCATION_KEYS
from prototrain.config.values import read_object
from prototrain.errors import ExperimentError
from prototrain.experiment import Experiment, checkpoint_steps
from prototrain.experiment.record import Attempt, Outcome, State, read_attempts
from prototrain.experiment.remote import experiments_below
from prototrain.experiment.rows import rows_of

_NO_END = "killed, no end was recorded"


@dataclass(frozen=True)
class Range:
    """The last value and the extremes of a scalar. An extreme is NaN only if all values are NaN.

    Attributes:
        last: the newest value.
        lowest, highest: (value, step) of the extremes. Of equal values, the first one counts.
    """

    last: float
    lowest: tuple[float, int]
    highest: tuple[float, int]


@dataclass(frozen=True, kw_only=True)
class Run:
    """The content of an experiment directory.

    Attributes:
        directory: the directory.
        name: the name in tables.
        state: "running", or how the run ended.
        reason: why the run ended; None if it completed as planned.
        step: completed steps. While the run is active, and after a kill or a failed start, the metrics and checkpoints
            determine them.
        total_steps: the step at which the run ends; None if there is no limit or it is not known.
        started: the time of the last start, in seconds since the epoch; None if not known.
        seconds: the duration of all attempts together.
        checkpoint: the step of the newest checkpoint; None if there is none.
        changes: (key, value, default) of the config values that differ from the model's own; None if not known.
        config: the content of config.json; empty if there is none.
        environment: the content of environment.json.
        attempts: the attempts, oldest first.
        ranges: the last value and the extremes of each scalar, by name.
    """

    directory: Path
    name: str
    state: State
    reason: str | None
    step: int
    total_steps: int | None
    started: float | None
    seconds: float
    checkpoint: int | None
    changes: list[tuple[str, Any, Any]] | None
    config: dict[str, Any]
    environment: dict[str, Any]
    attempts: list[Attempt]
    ranges: dict[str, Range]

    @cached_property
    def scalars(self) -> dict[str, list[tuple[int, float]]]:
        """All (step, value) pairs by scalar name, as in the file when first read; null is read as NaN."""
        found: dict[str, list[tuple[int, float]]] = {}
        with _reading(self.directory):
            for row in rows_of(Experiment(self.directory).metrics):
                for name, value in row.items():
                    if name not in ("step", "time") and (number := _number(value)) is not None:
                        found.setdefault(name, []).append((row["step"], number))
        return found

    @property
    def steps(self) -> str:
        """The completed steps and the total, as text."""
        return str(self.step) if self.total_steps is None else f"{self.step} of {self.total_steps}"

    @property
    def ending(self) -> str:
        """The state and its reason, as text."""
        return str(Outcome(self.state, self.reason))


def is_experiment(directory: Path) -> bool:
    """Return whether a directory has an environment.json, which every run writes."""
    return os.path.lexists(os.path.join(directory, "environment.json"))


def _fail(error: OSError) -> None:
    raise error


def find_runs(directory: str | Path, complain: Callable[[OSError], None] = _fail) -> Iterator[Path]:
    """Yield the experiments at and below a directory, sorted by name. Links are not followed.

    Args:
        directory: the directory or URL. For a URL, the results are the local copies, for `read_run`.
        complain: called with the error if a directory cannot be read; by default the error is raised.
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
        directory: the directory or URL. The local copy of a URL is updated first.
        name: the name in tables; by default the directory as given.
        clock: returns the time in seconds since the epoch.

    Raises:
        ExperimentError: the directory is not an experiment, or a file cannot be read.
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
    with _reading(directory):
        attempts = read_attempts(experiment.record)
        ranges, last_row = read_ranges(experiment.metrics)
        checkpoints = checkpoint_steps(experiment.checkpoints)
        running = (not attempts or attempts[-1].state == "running") and experiment.is_running()
    has_config = (directory / "config.json").exists()
    traces = [*([] if last_row is None else [last_row["step"]]), *checkpoints[-1:]]
    last = attempts[-1] if attempts else Attempt(started=math.nan)
    ended = last.state != "running"
    # An attempt without a recorded end lasts until now if it is running, else until its last row.
    until = clock() if running else (last_row or {}).get("time")
    rest = 0.0 if last.seconds is not None or until is None or not attempts else max(0.0, until - last.started)
    changes: Any = last.changes
    return Run(
        directory=directory,
        name=str(experiment) if name is None else name,
        state=last.state if ended or running else "interrupted",
        reason=last.reason if ended or running else _NO_END if attempts else "there is no run.json",
        step=max(traces, default=0) if last.step is None else last.step,
        total_steps=last.total_steps,
        started=last.started if attempts else None,
        seconds=sum((attempt.seconds or 0.0 for attempt in attempts), rest),
        checkpoint=checkpoints[-1] if checkpoints else None,
        changes=changes and [tuple(change) for change in changes if change[0] not in LOCATION_KEYS],
        config=read_object(directory / "config.json") if has_config else {},
        environment=read_object(experiment.environment),
        attempts=attempts,
        ranges=ranges,
    )


@contextmanager
def _reading(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExperimentError(f"cannot read {error.filename or directory}: {error.strerror}") from error


def settings(run: Run) -> dict[str, Any]:
    """Return the config of a run without the keys for its location."""
    return {key: value for key, value in run.config.items() if key not in LOCATION_KEYS}


def short_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of runs, without a parent directory that all of them share."""
    parents = {run.name.rpartition("/")[0] for run in runs}
    return [run.name.rpartition("/")[2] if len(parents) == 1 else run.name for run in runs]


def flat(entries: dict[str, Any]) -> dict[str, Any]:
    """Flatten a nested JSON object into one dict with dotted names."""
    found: dict[str, Any] = {}
    for key, value in entries.items():
        found |= (
            {f"{key}.{name}": inner for name, inner in flat(value).items()} if isinstance(value, dict) else {key: value}
        )
    return found


def read_ranges(path: Path) -> tuple[dict[str, Range], dict[str, Any] | None]:
    """Return the range of each scalar in a metrics.jsonl, in the order of first appearance, and the last row."""
    kept: dict[str, list[Any]] = {}  # last value, lowest with its step, highest with its step
    row = None
    for row in rows_of(path):
        step = row["step"]
        for name, value in row.items():
            if value.__class__ is not float and (value := _number(value)) is None:
                continue
            one = kept.get(name)
            if one is None:
                kept[name] = [value, value, step, value, step]
                continue
            one[0] = value
            if value < one[1] or one[1] != one[1]:  # NaN, which is not equal to itself
                one[1], one[2] = value, step
            if value > one[3] or one[3] != one[3]:
                one[3], one[4] = value, step
    ranges = {name: Range(last, (low, at), (high, then)) for name, (last, low, at, high, then) in kept.items()}
    return {name: found for name, found in ranges.items() if name not in ("step", "time")}, row


def _number(value: Any) -> float | None:
    """Return a number as a float, and null as NaN; None for anything else."""
    if value is None:
        return math.nan
    return float(value) if isinstance(value, float | int) else None
