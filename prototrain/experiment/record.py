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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from prototrain.errors import ExperimentError
from prototrain.experiment.rows import last_row
from prototrain.system.files import write_atomic

State = Literal["running", "finished", "interrupted", "failed"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run or of one attempt."""

    state: State
    reason: str | None = None  # one line about why it ended; None if it completed as planned

    def __str__(self) -> str:
        return self.state if self.reason is None else f"{self.state}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a run, from a start to the next stop. None stands for what is not known, or not known yet."""

    started: float  # seconds since the epoch
    state: State = "running"
    reason: str | None = None  # as in `Outcome`
    start: str | None = None  # the line `start` of the log
    first_step: int | None = None  # completed steps at the start
    step: int | None = None  # completed steps at the end
    total_steps: int | None = None  # the step at which it was to end; None without a limit
    seconds: float | None = None  # the duration
    # Seconds by activity of the training loop: steps, waiting for input (a part of the steps), and tracing.
    loop: dict[str, float] = field(default_factory=dict)
    callbacks: dict[str, float] = field(default_factory=dict)  # seconds by name, longest first
    has_saved: bool = False  # whether it wrote a checkpoint
    changes: Sequence[Sequence[Any]] | None = None  # (key, value, default) of values that differ from the model's own
    workers: int | None = None  # processes that trained together; None for a single process
    restarts: int | None = None  # earlier restarts of the workers, if a launcher restarts them
    cause: str | None = None  # of the last restart
    jit_compile: bool | str | None = None  # where XLA was used (False, True or "loop"), if the run measured that
    repeated: bool | None = None  # whether steps that were repeated after a kill gave the same scalars


_NUMBERS = ("started", "first_step", "step", "total_steps", "seconds")


class RunRecord:
    """Writes the attempt of this process into a run.json. If the file cannot be written, it only announces a warning.

    `setup` is the time, in seconds, that the attempt has taken so far. `facts` are attributes of `Attempt` that are
    known at the start.
    """

    def __init__(self, path: Path, announce: Callable[[str], None], setup: float = 0.0, **facts: Any) -> None:
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
        self._attempt = Attempt(started=round(time.time() - setup, 3), **facts)
        self._began = time.monotonic() - setup
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
    try:
        attempts = [Attempt(**one) for one in json.loads(path.read_bytes())["parts"]]
        for attempt in attempts:
            if not all(isinstance(getattr(attempt, name), int | float | None) for name in _NUMBERS):
                raise TypeError("expected a number")
            if attempt.state not in get_args(State) or any(len(change) != 3 for change in attempt.changes or ()):
                raise ValueError("expected a state, and changes of three values")
        return attempts
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ExperimentError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ExperimentError(f"{path} is damaged: it is not the record of a run") from error


def has_finished(path: Path) -> bool:
    """Return whether the last attempt in a run.json has finished; False if the file is missing or damaged."""
    with suppress(ExperimentError):
        return [attempt.state for attempt in read_attempts(path)][-1:] == ["finished"]
    return False


def has_saved(path: Path) -> bool:
    """Return whether there was a checkpoint since the run last began at step 0.

    Without a record, or with a damaged one, there may have been one if there are rows in the metrics.jsonl beside it.
    """
    found, attempts = False, []
    with suppress(ExperimentError):
        attempts = read_attempts(path)
    for attempt in attempts:
        resumed = (attempt.start or "").startswith("resumed")
        found = attempt.has_saved or resumed or (found and attempt.first_step != 0)
    return found or (not attempts and last_row(path.with_name("metrics.jsonl"))[0] is not None)
