"""What metrics.jsonl says of a run, taken in as a stream and kept in an index beside it.

The index only saves time. It is taken for what the file says if the file has not been touched since, or still begins
with the very bytes that the index was made from; else it is made anew. The last row of the file is never in it, since a
run completes that in place.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

from prototrain.experiment.rows import blocks, read_rows
from prototrain.runs.series import Series
from prototrain.system.files import write_atomic
from prototrain.system.waiting import announcing

SMALL_BYTES = 1 << 17  # of a file that is read in less time than an index
_LARGE_BYTES = 1 << 24  # of what may take long enough to be spoken of
_VERSION = 1
_FRESH_NS = 2 * 10**9
_PIECE_BYTES = 1 << 20


class Metrics:
    """All rows of a file, in little memory.

    Args:
        moments: in seconds since the epoch, for `latest_before`.
        curves: see `has_curves`.

    Attributes:
        series: of each scalar, by name, in the order of their first appearance.
        last_step: of the last row; None if there is none.
        latest_before: for each of the moments the time of the latest row before it; minus infinity if there is none.
        has_curves: whether the series know their curves, which take longer to read than all else.
    """

    def __init__(self, moments: Iterable[float] = (), *, curves: bool = True) -> None:
        self.series: dict[str, Series] = {}
        self.last_step: int | None = None
        self.latest_before = dict.fromkeys((*moments, math.inf), -math.inf)
        self.has_curves = curves
        self._latest = -math.inf

    def add(self, block: bytes) -> None:
        """Take in further lines."""
        found: dict[str, tuple[list[int], list[float]]] = {}
        # Neighbouring rows that have the same scalars are taken in column by column.
        for names, group in groupby(read_rows(block), key=tuple):
            rows = [row.values() for row in group]
            columns = dict(zip(names, zip(*rows, strict=True), strict=True))
            steps = columns.pop("step")
            self.last_step = steps[-1]
            self._add_times(_numbers(columns.pop("time", ()))[1])
            for name, column in columns.items():
                places, values = _numbers(column, nulls=True)
                if values:
                    all_steps, all_values = found.setdefault(name, ([], []))
                    all_steps += steps if len(values) == len(steps) else [steps[place] for place in places]
                    all_values += values
        for name, (all_steps, all_values) in found.items():
            self.series.setdefault(name, Series()).extend(all_steps, all_values, curve=self.has_curves)

    def _add_times(self, times: Sequence[float]) -> None:
        if math.isnan(sum(times)):
            times = [time for time in times if not math.isnan(time)]
        newest = max(times, default=-math.inf)
        for moment, latest in self.latest_before.items():
            before = newest if newest < moment else max((time for time in times if time < moment), default=latest)
            self.latest_before[moment] = max(latest, before)
        self._latest = max(self._latest, newest)

    def knows_before(self, moments: Iterable[float]) -> bool:
        """Whether `latest_before` can be had of these moments; if so, it has them from now on."""
        for moment in moments:
            if moment not in self.latest_before:
                if self._latest >= moment:
                    return False
                self.latest_before[moment] = self._latest
        return True

    # -- on disk ------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """All but the curves, as JSON can hold it."""
        return {
            "last_step": self.last_step,
            "latest": self._latest,
            "latest_before": list(self.latest_before.items()),
            "scalars": {name: series.facts() for name, series in self.series.items()},
        }

    @classmethod
    def of(cls, facts: dict[str, Any], shapes: dict[str, Any] | None) -> Metrics:
        """What `facts` are of; the curves are empty without their shapes."""
        self = cls(curves=shapes is not None)
        self.last_step, self._latest = facts["last_step"], facts["latest"]
        self.latest_before = dict(facts["latest_before"])
        for name, of_series in facts["scalars"].items():
            self.series[name] = Series.of(of_series, None if shapes is None else shapes[name])
        return self


def _numbers(column: Sequence[Any], *, nulls: bool = False) -> tuple[Sequence[int], Sequence[float]]:
    """The numbers in a column, and where they stand."""
    if set(map(type, column)) == {float}:
        return range(len(column)), column
    kinds = (int, float, type(None)) if nulls else (int, float)
    places = [place for place, value in enumerate(column) if isinstance(value, kinds)]
    return places, [as_float(column[place]) for place in places]


def as_float(value: float | None) -> float:
    """A value in a row as a number: JSON has no word for what is not finite, so that null stands for it."""
    try:
        return math.nan if value is None else float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return math.inf if value is not None and value > 0 else -math.inf


# -- reading ----------------------------------------------------------------------------------------------------------


def read_metrics(path: Path, moments: Iterable[float] = (), *, curves: bool = True) -> Metrics:
    """Read a file of metrics, by way of its index if it has one; a large one that has none gets one.

    Args:
        path: of metrics.jsonl, which need not be there.
        moments: for `Metrics.latest_before`.
        curves: whether those of the series are wanted; without them only a small part of the index is read.

    Raises:
        OSError: the file cannot be read.
    """
    moments = list(moments)
    if not path.exists():
        return Metrics(moments)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= SMALL_BYTES:
            return _added(Metrics(moments, curves=curves), file, size)
        index = _Index.load(path.with_name("metrics.index"), curves=curves)
        key = _key(file)
        if index is not None and key is not None and index.key == key and index.metrics.knows_before(moments):
            file.seek(index.covered)
            return _added(index.metrics, file, size)
        with _announcing(path, size):
            return _read_on(path, file, size, moments)


def _read_on(path: Path, file: BinaryIO, size: int, moments: Iterable[float]) -> Metrics:
    """Read what an index does not cover, and write one that covers all but the last row."""
    place = path.with_name("metrics.index")
    key = _key(file)
    index = _Index.load(place, curves=True)
    hashed = hashlib.blake2b(digest_size=16)
    if index is not None and (index.covered > size or not index.metrics.knows_before(moments)):
        index = None
    if index is not None and not index.is_of(file, hashed):
        index, hashed = None, hashlib.blake2b(digest_size=16)
    metrics, covered = (Metrics(moments), 0) if index is None else (index.metrics, index.covered)
    file.seek(covered)
    last = b""
    for block in _up_to(file, size):
        # The last line of a block waits for the next one: if there is none, it is not for the index.
        lines = last + block
        cut = lines.rfind(b"\n", 0, len(lines) - 1) + 1
        metrics.add(lines[:cut])
        hashed.update(lines[:cut])
        covered, last = covered + cut, lines[cut:]
    with suppress(OSError):  # a directory that cannot be written to, a full disk: the next time takes as long
        _Index(metrics, key, covered, hashed.hexdigest()).save(place)
    metrics.add(last)
    return metrics


def _added(metrics: Metrics, file: BinaryIO, size: int) -> Metrics:
    for block in _up_to(file, size):
        metrics.add(block)
    return metrics


def _up_to(file: BinaryIO, size: int) -> Iterator[bytes]:
    """What is left in a file, up to what was its size: it may grow meanwhile, and be cut off."""
    for block in blocks(file):
        yield block[: size - file.tell()] if file.tell() > size else block
        if file.tell() >= size:
            return


def _announcing(path: Path, size: int) -> AbstractContextManager[None]:
    if size < _LARGE_BYTES:
        return nullcontext()
    return announcing(f"reading {path}, {size / 1e6:,.0f} MB", partial(print, file=sys.stderr, flush=True))


# -- the index --------------------------------------------------------------------------------------------------------


def _key(file: BinaryIO) -> list[int] | None:
    """What changes whenever a file does; None for one that was changed so lately that it may change unnoticed."""
    found = os.fstat(file.fileno())
    if found.st_mtime_ns > time.time_ns() - _FRESH_NS:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


class _Index:
    """What a file says up to some place: a line with all but the curves, and one with them, each behind its digest.

    Args:
        metrics: what was read.
        key: of the file at that time, see `_key`.
        covered: the place, in bytes.
        digest: of these bytes.
    """

    def __init__(self, metrics: Metrics, key: list[int] | None, covered: int, digest: str) -> None:
        self.metrics = metrics
        self.key = key
        self.covered = covered
        self._digest = digest

    def is_of(self, file: BinaryIO, hashed: Any) -> bool:
        """Whether a file begins with what was read; takes in its bytes."""
        file.seek(0)
        left = self.covered
        while left and (piece := file.read(min(left, _PIECE_BYTES))):
            hashed.update(piece)
            left -= len(piece)
        return not left and hashed.hexdigest() == self._digest

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        shapes = _line({name: series.shape() for name, series in self.metrics.series.items()})
        head = {"version": _VERSION, "key": self.key, "covered": self.covered, "digest": self._digest}
        facts = {**head, "shapes": shapes[:32].decode(), "facts": self.metrics.facts()}
        write_atomic(path, _line(facts) + shapes, durable=False)

    @classmethod
    def load(cls, path: Path, *, curves: bool) -> _Index | None:
        """Read it; None if there is none that is whole, or only one of another version."""
        try:
            with open(path, "rb") as file:
                head = _content(file.readline())
                if head["version"] != _VERSION:
                    return None
                shapes = None
                if curves:
                    line = file.readline()
                    if line[:32].decode() != head["shapes"]:
                        return None
                    shapes = _content(line)
            return cls(Metrics.of(head["facts"], shapes), head["key"], head["covered"], head["digest"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None


def _line(content: Any) -> bytes:
    text = json.dumps(content, separators=(",", ":")).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest().encode() + b" " + text + b"\n"


def _content(line: bytes) -> Any:
    digest, text = line[:32], line[33:].removesuffix(b"\n")
    if hashlib.blake2b(text, digest_size=16).hexdigest().encode() != digest:
        raise ValueError("this line is damaged")
    return json.loads(text)
