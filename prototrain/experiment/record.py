"""run.json: what became of a run, for those who look at it from outside.

It has a part for each time that the run was started or went on. A part says "running" until its end is written: one
that still says so while no process has the directory was killed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from prototrain.errors import ExperimentError
from prototrain.system.files import write_atomic

State = Literal["running", "finished", "interrupted", "failed"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A run from one start to the next stop.

    Attributes:
        started: seconds since the epoch.
        state: what became of it.
        reason: why it ended, where there is more to say than that it came to its end.
        start: whether it began anew or went on, and how exactly; None if it failed before that was known.
        first_step: completed steps at its start; None as above.
        step: completed steps at its end; None as above, and while it has no end.
        total_steps: where it was to end; None if nowhere.
        seconds: how long it took; None while it has no end.
        loop: seconds spent on the steps, on waiting for input among them, and on tracing.
        callbacks: seconds that each callback took, by name, the longest first.
        changes: (key, value, default) of the config's values that are not the model's own ones; None if not known.
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
    changes: Sequence[Sequence[Any]] | None = None


class RunRecord:
    """Writes the part of a run.json that belongs to this process. What a full disk refuses is reported, and no more.

    Args:
        path: the file.
        announce: called with a line of text when it cannot be written.
        facts: what is known of the part from the start, as attributes of `Part`.
    """

    def __init__(self, path: Path, announce: Callable[[str], None], **facts: Any) -> None:
        self._path = path
        self._announce = announce
        self._earlier: list[Part] = []
        with suppress(ExperimentError):  # a damaged record is written anew
            self._earlier = read_parts(path)
        self._part = Part(started=round(time.time(), 3), **facts)
        self._began = time.monotonic()

    def begin(self, *, first_step: int, start: str) -> None:
        """Leave word that the run is under way."""
        self._part = replace(self._part, first_step=first_step, start=start)
        self._write()

    def end(
        self, state: State, reason: str | None, *, step: int, loop: dict[str, float], callbacks: dict[str, float]
    ) -> None:
        """Leave word of the end."""
        known = None if self._part.first_step is None else step
        seconds = round(time.monotonic() - self._began, 3)
        ended = replace(self._part, state=state, reason=reason, step=known, seconds=seconds)
        self._part = replace(ended, loop=loop, callbacks=callbacks)
        self._write()

    def _write(self) -> None:
        content = {"parts": [asdict(part) for part in [*self._earlier, self._part]]}
        try:
            write_atomic(self._path, json.dumps(content, indent=1) + "\n")
        except OSError as error:
            self._announce(f"WARNING: cannot write {self._path}: {error.strerror}")


def read_parts(path: Path) -> list[Part]:
    """Read a run.json, oldest part first; none if there is no such file.

    Raises:
        ExperimentError: it cannot be read, or is not what a run writes.
    """
    known = {attribute.name for attribute in fields(Part)}
    try:
        found = json.loads(path.read_bytes())["parts"]
        # What a later version may have added is left out.
        parts = [Part(**{name: value for name, value in part.items() if name in known}) for part in found]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ExperimentError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ExperimentError(f"{path} is damaged: it does not hold the parts of a run") from error
    if not all(_is_sound(part) for part in parts):
        raise ExperimentError(f"{path} is damaged: a part of the run has a wrong value")
    return parts


def _is_sound(part: Part) -> bool:
    parts_of_time = (part.loop, part.callbacks)
    if not all(isinstance(times, dict) for times in parts_of_time):
        return False
    numbers = [part.started, *part.loop.values(), *part.callbacks.values()]
    maybe_numbers = (part.first_step, part.step, part.total_steps, part.seconds)
    changes = part.changes or []
    return (
        all(isinstance(number, int | float) for number in numbers)
        and all(number is None or isinstance(number, int | float) for number in maybe_numbers)
        and all(text is None or isinstance(text, str) for text in (part.reason, part.start))
        and part.state in get_args(State)
        and isinstance(changes, list)
        and all(isinstance(change, list) and len(change) == 3 for change in changes)
    )
