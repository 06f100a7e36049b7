"""The rows of metrics.jsonl, read as a stream: there may be millions of them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from prototrain.system.contained import open_file
from prototrain.system.files import sync, write_atomic

Row = dict[str, Any]

NOT_REPEATED = ("perf/", "checkpoint/", "cluster/")
"""What the names of scalars start with that measure time, memory or the machine: another run has other values."""
_BLOCK_BYTES = 1 << 20
_TAIL_BYTES = 1 << 16
# As `JSONWriter` writes a row. To look only at the steps takes a third of the time that it takes to read the rows.
_STEPS = re.compile(rb'\n\{"step": ?(\d{1,18})[,}]')


def is_repeatable(name: str) -> bool:
    """Whether a scalar has the same value where the same step is made again."""
    return not name.startswith(NOT_REPEATED)


@dataclass(frozen=True)
class Repetition:
    """The outcome of a comparison of rows that were made twice.

    Attributes:
        is_same: whether all scalars agree.
        text: the repeated steps, or the first step and scalar that differ, in words.
    """

    is_same: bool
    text: str


class RepeatedRows:
    """Compares rows with those that an earlier attempt made of the same steps.

    Args:
        path: of the rows that were set aside.
        offset: where those of the earlier attempt begin in the file.
        step: the completed steps that this attempt starts from.
    """

    def __init__(self, path: Path, offset: int, step: int) -> None:
        self._rows = rows_of(path, offset)
        self._earlier = next(self._rows, None)
        self._first = step + 1
        self._compared = 0  # the last step of which there were two rows

    def compare(self, row: Row, *, is_last: bool) -> Repetition | None:
        """Compare a row with the earlier one of its step, if there is one.

        Args:
            row: complete.
            is_last: whether this attempt ends here.

        Returns:
            the outcome, once it is known.
        """
        step = row["step"]
        while self._earlier is not None and self._earlier["step"] < step:
            self._earlier = next(self._rows, None)
        if self._earlier is not None and self._earlier["step"] == step:
            self._compared = step
            for name, value in row.items():
                then, now = self._earlier.get(name), value if math.isfinite(value) else None
                if name in self._earlier and name != "time" and is_repeatable(name) and then != now:
                    return Repetition(False, f"step {step} was made again with another {name}: {now!r}, was {then!r}")
            self._earlier = next(self._rows, None)
        if not self._compared or (self._earlier is not None and not is_last):
            return None
        steps = f"steps {self._first} to {self._compared}" if self._first < self._compared else f"step {self._first}"
        return Repetition(True, f"{steps} repeated with the same values")


def read_rows(content: bytes) -> Iterator[Row]:
    """The rows in the content of a metrics.jsonl, each with its "step"; lines that are no rows, or half of one, are
    left out."""
    for line in content.splitlines(keepends=True):
        try:
            row = orjson.loads(line)
            is_row = type(row["step"]) is int and line.endswith(b"\n")
        except (ValueError, TypeError, LookupError):
            is_row = False
        if is_row or (row := _row(line)) is not None:
            yield row


def rows_of(path: Path, offset: int = 0) -> Iterator[Row]:
    """The rows of a metrics.jsonl in their order, as `read_rows` gives them; none if there is no such file.

    Args:
        path: of the file.
        offset: where in the file to begin.

    Raises:
        OSError: it cannot be read.
    """
    if path.exists():
        with open(path, "rb") as file:
            file.seek(offset)
            for block in blocks(file):
                yield from read_rows(block)


def blocks(file: BinaryIO) -> Iterator[bytes]:
    """What is left in a file, in pieces of about a megabyte, each of whole lines."""
    while block := file.read(_BLOCK_BYTES):
        yield block + file.readline()


def _row(line: bytes) -> Row | None:
    if not line.endswith(b"\n"):
        return None
    try:
        row = orjson.loads(line)
    except ValueError:
        row = _by_standard_library(line)
    if isinstance(row, dict) and isinstance(row.get("step"), float):
        row = _by_standard_library(line)  # what orjson makes of a whole number that is larger than 64 bits
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _by_standard_library(line: bytes) -> Any:
    """What orjson refuses may be a row all the same: other programs write NaN, which is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


# -- going on with a file ---------------------------------------------------------------------------------------------


def cut_back(path: Path, step: int) -> tuple[Row, int] | None:
    """Leave the rows up to a step in a file; later ones move to `superseded`, and what is behind the last row goes.

    Returns:
        the last row, and where in the file it begins; None if there is none.

    Raises:
        OSError: a file cannot be read or written.
    """
    if not path.exists():
        return None
    in_front, in_order = _part_off(path, step)
    if not in_order:
        with open(path, "rb") as file:
            write_atomic(path, (line for block in blocks(file) for line in _kept(block, step)))
    elif in_front < path.stat().st_size:
        _truncate(path, in_front)
    last = _last_row(path)
    end = 0 if last is None else last[2]
    if end < path.stat().st_size:
        _truncate(path, end)
    return None if last is None else last[:2]


def superseded(path: Path) -> Path:
    """Where rows go that were made again."""
    return path.with_name("metrics.superseded.jsonl")


def _part_off(path: Path, step: int) -> tuple[int, bool]:
    """Copy the rows behind a step to where they go.

    Returns:
        how many bytes at the front stay as they are, and whether these are all that stay.
    """
    in_front, in_order = 0, True
    with open(path, "rb") as file, _Appended(superseded(path)) as aside:
        for block in blocks(file):
            steps = _steps(block)
            if steps and min(steps) > step:
                aside.write(block)
                continue
            kept = block if steps and max(steps) <= step else b"".join(_kept(block, step))
            if kept is not block:
                rows = ((line, _row(line)) for line in block.splitlines(keepends=True))
                aside.write(b"".join(line for line, row in rows if row is not None and row["step"] > step))
            if kept and in_front == file.tell() - len(block) and block.startswith(kept):
                in_front += len(kept)
            elif kept:
                in_order = False
    return in_front, in_order


def _kept(block: bytes, step: int) -> Iterator[bytes]:
    """The lines of a block that are rows up to a step."""
    for line in block.splitlines(keepends=True):
        if (row := _row(line)) is not None and row["step"] <= step:
            yield line


def _steps(block: bytes) -> list[int] | None:
    """The steps of the rows in a block, if every line of it looks like a row as it is written here."""
    found = _STEPS.findall(b"\n" + block)
    if len(found) < block.count(b"\n") or not block.endswith(b"\n") or b"\r" in block:
        return None
    return list(map(int, found))


def _last_row(path: Path) -> tuple[Row, int, int] | None:
    """The last row of a file, and where it begins and ends."""
    size = path.stat().st_size
    length = _TAIL_BYTES
    with open(path, "rb") as file:
        while True:
            start = max(0, size - length)
            file.seek(start)
            if start:
                file.readline()  # half of a line, or a whole one that is left to the next turn
            end = size
            for line in reversed(file.read().splitlines(keepends=True)):
                if _row(line) is not None:
                    # It may be written again, as it was: large whole numbers stay what they are.
                    return _by_standard_library(line), end - len(line), end
                end -= len(line)
            if not start:
                return None
            length *= 8


def _truncate(path: Path, size: int) -> None:
    os.truncate(path, size)
    sync(path)


class _Appended:
    """A file that lines are added to; if that fails it is as it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._size = 0

    def __enter__(self) -> _Appended:
        return self

    def write(self, lines: bytes) -> None:
        if not lines:
            return
        if self._file is None:
            descriptor = open_file(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self._file = open(descriptor, "a+b")  # noqa: SIM115 - closed by __exit__
            self._size = self._file.seek(0, os.SEEK_END)
            if self._size:
                self._file.seek(self._size - 1)
                if self._file.read(1) != b"\n":  # a kill has left half of a line
                    self._file.write(b"\n")
        self._file.write(lines)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is None:
            return
        whole = False
        try:
            with self._file as file:
                if kind is None:
                    file.flush()
                    os.fsync(file.fileno())
                    whole = True
        finally:
            if not whole:
                os.truncate(self._path, self._size)
