"""The rows of metrics.jsonl, in ascending order of steps. A file may have millions of them."""

from __future__ import annotations

import math
import mmap
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from prototrain.system.files import sync

Row = dict[str, Any]

NOT_REPEATED = ("perf/", "checkpoint/", "cluster/")  # prefixes of scalars about time, memory or the machine


def is_repeatable(name: str) -> bool:
    """Return whether a scalar has the same value when a step is repeated."""
    return not name.startswith(NOT_REPEATED)


class RepeatedRows:
    """Compares rows with those of the same steps in an earlier attempt, which begin in `path` at an offset in bytes.

    `step` is the number of completed steps at the start of this attempt.
    """

    def __init__(self, path: Path, offset: int, step: int) -> None:
        self._rows = rows_of(path, offset)
        self._earlier = next(self._rows, None)
        self._first = step + 1
        self._compared = 0  # the last step that has two rows

    def compare(self, row: Row, *, is_last: bool) -> tuple[bool, str] | None:
        """Compare a row with the earlier row of the same step, if there is one. `is_last` marks the end of the attempt.

        Returns:
            once it is known, whether all scalars agree, and a line about the repeated steps or the first difference.
        """
        step = row["step"]
        while self._earlier is not None and self._earlier["step"] < step:
            self._earlier = next(self._rows, None)
        if self._earlier is not None and self._earlier["step"] == step:
            self._compared = step
            for name, value in row.items():
                now = None if value is None or not math.isfinite(value) else value
                then = self._earlier.get(name)
                if name in self._earlier and name != "time" and is_repeatable(name) and then != now:
                    return False, f"step {step} was repeated with a different {name}: {now!r} instead of {then!r}"
            self._earlier = next(self._rows, None)
        if not self._compared or (self._earlier is not None and not is_last):
            return None
        steps = f"steps {self._first} to {self._compared}" if self._first < self._compared else f"step {self._first}"
        return True, f"{steps} repeated with the same values"


def rows_of(path: Path, offset: int = 0) -> Iterator[Row]:
    """Yield the rows of a metrics.jsonl from an offset in bytes; none if there is no such file.

    A row is a line with a JSON object that has an integer "step". Other lines and an incomplete last line are skipped.
    """
    if path.exists():
        with open(path, "rb") as file:
            file.seek(offset)
            for line in file:
                if line.endswith(b"\n") and (row := _row(line)) is not None:
                    yield row


def _row(line: bytes) -> Row | None:
    try:
        row = orjson.loads(line)
        return row if type(row["step"]) is int else None
    except (ValueError, TypeError, LookupError):
        return None


def truncate_rows(path: Path, step: int) -> tuple[Row, int] | None:
    """Keep the rows of a file up to a step, and move the lines after them to the `superseded` file.

    Returns:
        the last row and its offset in bytes; None if there is no row.
    """
    if not path.exists():
        return None
    row, begin, end = last_row(path, step)
    if end < path.stat().st_size:
        with open(superseded(path), "a+b") as target, open(path, "rb") as file:
            target.seek(max(target.seek(0, os.SEEK_END) - 1, 0))
            if target.read(1) not in (b"", b"\n"):  # a killed process left an incomplete line
                target.write(b"\n")
            file.seek(end)
            shutil.copyfileobj(file, target)
            target.flush()
            os.fsync(target.fileno())
        os.truncate(path, end)
        sync(path)
    return None if row is None else (row, begin)


def last_row(path: Path, step: float = math.inf) -> tuple[Row | None, int, int]:
    """Return the last row up to a step with its start and end in bytes, or (None, 0, 0). Reads the file backwards."""
    if path.exists() and path.stat().st_size:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            end = content.rfind(b"\n") + 1
            while end:
                begin = content.rfind(b"\n", 0, end - 1) + 1
                if (row := _row(content[begin:end])) is not None and row["step"] <= step:
                    return row, begin, end
                end = begin
    return None, 0, 0


def superseded(path: Path) -> Path:
    """Return the path of the file for superseded rows."""
    return path.with_name("metrics.superseded.jsonl")
