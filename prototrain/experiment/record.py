"""run.json: the state and the outcome of a run, for other programs.

Each start of a run begins a new attempt. The state of an attempt is "running" until its end is recorded. An attempt
that is "running" while no process holds the directory was killed. The file calls the attempts "parts".
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from prototrain.errors import ExperimentError
from prototrain.experiment.rows import last_row
from prototrain.system.files import write_atomic

State = Literal["running", "finished", "interrupted", "failed"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run or of one attempt.

    Attributes:
        state: "running" until the end.
        reason: one line about why it ended; None if it completed as planned.
    """

    state: State
    reason: str | None = None

    def __str__(self) -> str:
        return self.state if self.reason is None else f"{self.state}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a run, from a start to the next stop.

    Attributes:
        started: the time of the start, in seconds since the epoch.
        state: the state, as in `Outcome`.
        reason: the reason for the end, as in `Outcome`.
        start: the line `start` of the log; None if it failed earlier.
        first_step: completed steps at the start; None if it failed earlier.
        step: completed steps at the end; None if it failed earlier or has not ended.
        total_steps: the step at which it was to end; None without a limit.
        seconds: the duration; None if it has not ended.
        loop: seconds by activity of the training loop: steps, waiting for input (a part of the steps), and tracing.
        callbacks: seconds by callback name, longest first.
        has_saved: whether it wrote a checkpoint.
        changes: (key, value, default) of the config values that differ from the model's own; None if not known.
        workers: the number of processes that trained together; None for a single process.
        restarts: the number of earlier restarts of the workers, if a launcher restarts them.
        cause: the reason for the last restart.
        jit_compile: where XLA was used (False, True or "loop"), if the run measured which is faster.
        repeated: whether steps that were repeated after a kill gave the same scalars; None if there were none.
    """

    started: float
    state: State = "running"
    reason: str | None = None
    start: str | None = None
    first_step: int | None = None
    step: int | None = None
    total_steps: int | None = None
    seconds: float | None = None
    loop: dict[str, float] = field(default_factory=dict)
    callbacks: dict[str, float] = field(default_factory=dict)
    has_saved: bool = False
    changes: Sequence[Sequence[Any]] | None = None
    workers: int | None = None
    restarts: int | None = None
    cause: str | None = None
    jit_compile: bool | str | None = None
    repeated: bool | None = None


class RunRecord:
    """Writes the attempt of this process into a run.json. If the file cannot be written, it only prints a warning.

    Args:
        path: the file.
        announce: called with a line of text if the file cannot be written.
        facts: attributes of `Attempt` that are known at the start.
    """

    def __init__(self, path: Path, announce: Callable[[str], None], **facts: Any) -> None:
        self._path = path
        self._announce = announce
        self._earlier: list[Attempt] = []
        with suppress(ExperimentError, OSError):  # a damaged record is replaced
            self._earlier = read_attempts(path)
            row, *_ = last_row(path.with_name("metrics.jsonl"))
            time_of_row = None if row is None else row.get("time")
            # A killed attempt lasted until its last row.
            if self._earlier and self._earlier[-1].seconds is None and isinstance(time_of_row, int | float):
                seconds = round(max(0.0, time_of_row - self._earlier[-1].started), 3)
                self._earlier[-1] = replace(self._earlier[-1], seconds=seconds)
        self._attempt = Attempt(started=round(time.time(), 3), **facts)
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def note(self, **facts: Any) -> None:
        """Set attributes of the `Attempt` and write the file."""
        with self._lock:
            self._attempt = replace(self._attempt, **facts)
            content = {"parts": [asdict(attempt) for attempt in [*self._earlier, self._attempt]]}
            try:
                write_atomic(self._path, json.dumps(content, indent=1) + "\n")
            except OSError as error:
                self._announce(f"WARNING: cannot write {self._path}: {error.strerror}")

    def note_save(self) -> None:
        """Record the first checkpoint; later calls do nothing. May be called in any thread."""
        if not self._attempt.has_saved:
            self.note(has_saved=True)

    def end(self, outcome: Outcome, *, step: int, loop: dict[str, float], callbacks: dict[str, float]) -> None:
        """Record the end of the attempt."""
        known = None if self._attempt.first_step is None else step
        seconds = round(time.monotonic() - self._began, 3)
        self.note(**asdict(outcome), step=known, seconds=seconds, loop=loop, callbacks=callbacks)


def read_attempts(path: Path) -> list[Attempt]:
    """Read the attempts in a run.json, oldest first; [] if there is no such file.

    Raises:
        ExperimentError: the file cannot be read, or is damaged.
    """
    known = {attribute.name for attribute in fields(Attempt)}
    try:
        found = json.loads(path.read_bytes())["parts"]
        # Ignore attributes that a later version has added.
        return [Attempt(**{name: value for name, value in one.items() if name in known}) for one in found]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ExperimentError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ExperimentError(f"{path} is damaged: it does not hold the parts of a run") from error


@dataclass(frozen=True, kw_only=True)
class Past:
    """A summary of the attempts since the run last began at step 0.

    Attributes:
        steps: the number of steps that are known to be completed. The steps of a killed attempt are known from its
            metrics only.
        has_saved: whether one of the attempts had a checkpoint.
    """

    steps: int
    has_saved: bool


def read_past(record: Path, metrics: Path) -> Past | None:
    """Summarise the earlier attempts from the run.json and the metrics.jsonl.

    Returns:
        None if there is no completed step, no checkpoint and no killed attempt.

    Raises:
        ExperimentError: the metrics cannot be read.
    """
    try:
        row, *_ = last_row(metrics)
    except OSError as error:
        raise ExperimentError(f"cannot read {metrics}: {error.strerror}") from error
    made = 0 if row is None else row["step"]
    attempts = []
    with suppress(ExperimentError):  # a damaged record is treated like a missing one
        attempts = [attempt for attempt in read_attempts(record) if attempt.first_step is not None]
    if not attempts:
        # Every run writes a record before its first step, so the record was deleted or damaged.
        return Past(steps=made, has_saved=True) if made else None
    first = max((number for number, attempt in enumerate(attempts) if attempt.first_step == 0), default=0)
    latest = attempts[first:]
    steps = max([made, *(attempt.step or attempt.first_step or 0 for attempt in latest)])
    has_saved = any(attempt.has_saved or (attempt.start or "").startswith("resumed") for attempt in latest)
    was_killed = latest[-1].state == "running"
    return Past(steps=steps, has_saved=has_saved) if steps or has_saved or was_killed else None
