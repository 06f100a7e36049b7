"""The rows of metrics.jsonl, read as a stream: there may be millions of them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from prototrain.system.contained import open_file
from prototrain.system.files import sync, write_atomic

Row = dict[str, Any]

_BLOCK_BYTES = 1 << 20
_TAIL_BYTES = 1 << 16
# As `JSONWriter` writes a row. To look only at the steps takes a third of the time that it takes to read the rows.
_STEPS = re.compile(rb'\n\{"step": ?(\d{1,18})[,}]')


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


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a metrics.jsonl in their order, as `read_rows` gives them; none if there is no such file.

    Raises:
        OSError: it cannot be read.
    """
    if path.exists():
        with open(path, "rb") as file:
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
