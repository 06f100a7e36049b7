"""A scalar over a run in little memory, however many values it has: its last value, its extremes, and its shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

GROUPS = 2048
"""How many groups of neighbouring points a thinned curve has at most: even, and more than a picture has columns."""

Point = tuple[int, float]
Curve = list[Point]


@dataclass(frozen=True)
class Range:
    """A scalar over a run; NaN counts only where there is nothing else.

    Attributes:
        last: its newest value.
        lowest, highest: (value, step) of the extremes.
    """

    last: float
    lowest: tuple[float, int]
    highest: tuple[float, int]


class Series:
    """The values of a scalar, taken in piece by piece.

    What is kept does not depend on the pieces. A curve of more than `GROUPS` points is thinned: of every few neighbours
    the lowest and the highest are kept, so that no peak is lost.
    """

    def __init__(self) -> None:
        self._first: Point | None = None
        self._last: Point = (0, math.nan)
        self._lowest: tuple[float, int] | None = None
        self._highest: tuple[float, int] | None = None
        self._groups: list[Curve] = []
        self._length = 1  # how many points a group stands for, a power of two
        self._open = 0  # how many points the last group stands for, if these are not yet so many

    @property
    def range(self) -> Range:
        """Its last value and its extremes."""
        step, last = self._last
        return Range(last, self._lowest or (math.nan, step), self._highest or (math.nan, step))

    @property
    def curve(self) -> Curve:
        """Its points in their order; of many, those that a picture shows."""
        points = [point for group in self._groups for point in group]
        if (
            self._length > 1 and self._first is not None
        ):  # an end may be neither the lowest nor the highest of its group
            points = [*([] if points[0] == self._first else [self._first]), *points]
            points += [] if points[-1] == self._last else [self._last]
        return points

    def extend(self, steps: Sequence[int], values: Sequence[float], *, curve: bool = True) -> None:
        """Take in further values, at least one; without `curve` only for the range."""
        if self._first is None:
            self._first = steps[0], values[0]
        self._last = steps[-1], values[-1]
        self._extend_range(steps, values)
        if curve:
            self._extend_curve(steps, values)

    def _extend_range(self, steps: Sequence[int], values: Sequence[float]) -> None:
        numbers = [value for value in values if not math.isnan(value)] if math.isnan(sum(values)) else values
        if not numbers:
            return
        low, high, first = min(numbers), max(numbers), min(steps)
        # Of equal values the one of the smallest step counts, which is hardly ever among the newest ones.
        if self._lowest is None or low < self._lowest[0] or (low == self._lowest[0] and first < self._lowest[1]):
            found = min(_equal(low, steps, values))
            self._lowest = found if self._lowest is None else min(self._lowest, found)
        if self._highest is None or high > self._highest[0] or (high == self._highest[0] and first < self._highest[1]):
            found = min(_equal(high, steps, values), key=lambda pair: pair[1])
            self._highest = found if self._highest is None else max(self._highest, found, key=_by_value_then_first)

    def _extend_curve(self, steps: Sequence[int], values: Sequence[float]) -> None:
        place = 0
        if self._length == 1:  # as long as each point has a group of its own
            place = min(len(values), GROUPS - len(self._groups))
            self._groups += [[point] for point in zip(steps[:place], values[:place], strict=True)]
        while place < len(values):
            begin, place = place, min(len(values), place + self._length - self._open)
            points = _extremes(steps[begin:place], values[begin:place])
            if self._open:
                points = _kept([*self._groups.pop(), *points])
            self._groups.append(points)
            self._open = (self._open + place - begin) % self._length
            if len(self._groups) > GROUPS:
                self._halve()

    def _halve(self) -> None:
        """Make groups twice as long; the last one, for which there is no other, is half full then, or less."""
        pairs = zip(self._groups[::2], [*self._groups[1::2], []], strict=True)
        self._groups = [_kept([*one, *other]) for one, other in pairs]
        self._open = self._open or self._length
        self._length *= 2

    # -- on disk ------------------------------------------------------------------------------------------------------

    def facts(self) -> list[Any]:
        """All but the curve, as JSON can hold it."""
        return [self._first, self._last, self._lowest, self._highest, self._length, self._open]

    def shape(self) -> list[Curve]:
        """The curve, as JSON can hold it."""
        return self._groups

    @classmethod
    def of(cls, facts: Sequence[Any], shape: Iterable[Any] | None) -> Series:
        """What `facts` and `shape` are of; without a shape only `range` is of use."""
        self = cls()
        pairs = [None if pair is None else tuple(pair) for pair in facts[:4]]
        self._first, self._lowest, self._highest = pairs[0], pairs[2], pairs[3]
        self._last = pairs[1]  # type: ignore[assignment]
        if shape is not None:
            self._length, self._open = facts[4:]
            self._groups = [[(step, value) for step, value in group] for group in shape]
        return self


def _equal(value: float, steps: Sequence[int], values: Sequence[float]) -> list[tuple[float, int]]:
    """The values that are equal to one of them, each with its step."""
    if values.count(value) == 1:
        place = values.index(value)
        return [(values[place], steps[place])]
    return [(other, step) for other, step in zip(values, steps, strict=True) if other == value]


def _by_value_then_first(pair: tuple[float, int]) -> tuple[float, int]:
    return pair[0], -pair[1]


def _extremes(steps: Sequence[int], values: Sequence[float]) -> Curve:
    """The lowest and the highest of some neighbouring points, in their order."""
    if len(values) == 1:
        return [(steps[0], values[0])]
    if not math.isfinite(sum(values)):
        return _kept(list(zip(steps, values, strict=True)))
    places = sorted({values.index(min(values)), values.index(max(values))})
    return [(steps[place], values[place]) for place in places]


def _kept(points: Curve) -> Curve:
    """The same of points of which some may not be finite: only where nothing is, there is a gap to be seen."""
    if len(points) < 3 and all(math.isfinite(value) for _, value in points):
        return points if len(points) < 2 or points[0][1] != points[1][1] else points[:1]
    places = [place for place, (_, value) in enumerate(points) if math.isfinite(value)] or [0]
    low = min(places, key=lambda place: points[place][1])
    high = max(places, key=lambda place: points[place][1])
    return [points[place] for place in sorted({low, high})]
