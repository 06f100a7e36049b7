"""run.json: the state and the outcome of a run, for other programs.

A run has one attempt for each time that it was started. The state of an attempt is "running" until its end is written;
an attempt that is "running" while no process holds the directory was killed. The file calls attempts "parts".
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from prototrain.errors import ExperimentError
from prototrain.experiment.rows import last_row
from prototrain.system.files import write_atomic

State = Literal["running", "finished", "interrupted", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What became of a run, or of one attempt at it.

    Attributes:
        state: "running" until it ends.
        reason: why it ended, where there is more to say than that it came to its end; one line.
    """

    state: State
    reason: str | None = None

    def __str__(self) -> str:
        return self.state if self.reason is None else f"{self.state}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A run from one start to the next stop.

    Attributes:
        started: seconds since the epoch.
        state: what became of it.
        reason: why it ended, where there is more to say than that it came to its end.
        start: the line `start`; None if it failed before.
        first_step: completed steps at its start; None as above.
        step: completed steps at its end; None as above, and while it has no end.
        total_steps: where it was to end; None if nowhere.
        seconds: how long it took; None while it has no end.
        loop: seconds spent on the steps, on waiting for input among them, and on tracing.
        callbacks: seconds that each callback took, by name, the longest first.
        has_saved: whether it has written a checkpoint.
        changes: (key, value, default) of the config's values that are not the model's own ones; None if not known.
        workers: how many processes trained together; None for a single one.
        restarts: how often these were started again before, if something saw to that.
        cause: why they were started again the last time.
        jit_compile: where XLA was used (False, True or "loop"), if the run has measured which is faster.
        repeated: whether steps that were made again after a kill gave the same scalars; None if there were none.
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
    """Writes this process's attempt into a run.json. What a full disk refuses is reported, and no more.

    Args:
        path: the file.
        announce: called with a line of text when it cannot be written.
        facts: what is known of the attempt from the start, as attributes of `Attempt`.
    """

    def __init__(self, path: Path, announce: Callable[[str], None], **facts: Any) -> None:
        self._path = path
        self._announce = announce
        self._earlier: list[Attempt] = []
        with suppress(ExperimentError, OSError):  # a damaged record is written again
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
        """Note facts of the attempt, as attributes of `Attempt`."""
        with self._lock:
            self._attempt = replace(self._attempt, **facts)
            content = {"parts": [asdict(attempt) for attempt in [*self._earlier, self._attempt]]}
            try:
                write_atomic(self._path, json.dumps(content, indent=1) + "\n")
            except OSError as error:
                self._announce(f"WARNING: cannot write {self._path}: {error.strerror}")

    def note_save(self) -> None:
        """Record that there is a checkpoint; in any thread. Only the first one is recorded."""
        if not self._attempt.has_saved:
            self.note(has_saved=True)

    def end(self, outcome: Outcome, *, step: int, loop: dict[str, float], callbacks: dict[str, float]) -> None:
        """Record the end of the run."""
        known = None if self._attempt.first_step is None else step
        seconds = round(time.monotonic() - self._began, 3)
        self.note(**asdict(outcome), step=known, seconds=seconds, loop=loop, callbacks=callbacks)


def read_attempts(path: Path) -> list[Attempt]:
    """Read a run.json, oldest attempt first; none if there is no such file."""
    known = {attribute.name for attribute in fields(Attempt)}
    try:
        found = json.loads(path.read_bytes())["parts"]
        # What a later version may have added is left out.
        attempts = [Attempt(**{name: value for name, value in one.items() if name in known}) for one in found]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ExperimentError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ExperimentError(f"{path} is damaged: it does not hold the parts of a run") from error
    if not all(map(_is_sound, attempts)):
        raise ExperimentError(f"{path} is damaged: a part of the run has a wrong value")
    return attempts


def _is_sound(attempt: Attempt) -> bool:
    return (
        isinstance(attempt.started, int | float)
        and attempt.state in get_args(State)
        and all(isinstance(taken, int | float | None) for taken in (attempt.first_step, attempt.step, attempt.seconds))
        and all(isinstance(change, list) and len(change) == 3 for change in attempt.changes or ())
    )


@dataclass(frozen=True, kw_only=True)
class Past:
    """The attempts at a run since it was last begun at step 0.

    Attributes:
        steps: how many steps are known to have been made; of a killed attempt only the metrics tell.
        has_saved: whether there has been a checkpoint of theirs.
    """

    steps: int
    has_saved: bool


def read_past(record: Path, metrics: Path) -> Past | None:
    """Find out from the run.json and the metrics.jsonl whether there were steps before.

    Returns:
        None if no step is known of, and no attempt was killed.
    """
    try:
        row, *_ = last_row(metrics)
    except OSError as error:
        raise ExperimentError(f"cannot read {metrics}: {error.strerror}") from error
    made = 0 if row is None else row["step"]
    attempts = []
    with suppress(ExperimentError):  # one that is damaged says as little as one that is not there
        attempts = [attempt for attempt in read_attempts(record) if attempt.first_step is not None]
    if not attempts:
        # Every run writes a record before its first step, so something was deleted here.
        return Past(steps=made, has_saved=True) if made else None
    first = max((number for number, attempt in enumerate(attempts) if attempt.first_step == 0), default=0)
    latest = attempts[first:]
    steps = max([made, *(attempt.step or attempt.first_step or 0 for attempt in latest)])
    has_saved = any(attempt.has_saved or (attempt.start or "").startswith("resumed") for attempt in latest)
    was_killed = latest[-1].state == "running"
    return Past(steps=steps, has_saved=has_saved) if steps or has_saved or was_killed else None
