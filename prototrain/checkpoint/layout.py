"""How plain values lie in memory, as far as a checkpoint does not keep it: what they share, and gaps in arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def not_kept(entries: Mapping[str, Any]) -> list[str]:
    """Name what comes back from a checkpoint with its values, but lies otherwise in memory.

    Args:
        entries: plain values and arrays of a state dict, by key.

    Returns:
        in words: who shares a list, a dict or the memory of an array, and which arrays have gaps or axes in an order
        that is neither C's nor Fortran's, so that sums over them may differ in the last bit.
    """
    found: list[str] = []
    met: dict[int, str] = {}
    arrays: list[tuple[int, int, str]] = []
    for key, value in _containers(entries):
        if not isinstance(value, np.ndarray):
            if id(value) in met:
                found.append(f"{_both(met[id(value)], key)} a {type(value).__name__}, which are two after a resume")
            met.setdefault(id(value), key)
            continue
        if value.size:
            arrays.append((*_bounds(value), key))
        if order_of(value) is None:
            found.append(
                f"state[{key!r}] holds an array with gaps or with its axes in another order, which a resume does not "
                "keep (np.ascontiguousarray makes one without)"
            )
    found += [
        f"{_both(one, other)} the memory of an array, which is two after a resume" for one, other in _over(arrays)
    ]
    return list(dict.fromkeys(found))


def order_of(array: np.ndarray[Any, Any]) -> str | None:
    """The order of an array's elements in memory, "C" or "F"; None if it is neither."""
    if array.flags.c_contiguous:
        return "C"
    return "F" if array.flags.f_contiguous else None


def _containers(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The lists, dicts and arrays in values, each as often as it is held, with the key of the entry."""
    opened: set[int] = set()
    for key, entry in entries.items():
        waiting = [entry]
        while waiting:
            value = waiting.pop()
            kind = type(value)
            if kind in (list, dict) or isinstance(value, np.ndarray):
                yield key, value
            if kind in (list, tuple, dict) and id(value) not in opened:
                opened.add(id(value))
                waiting += value.values() if kind is dict else value


def _bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Where an array's memory begins, and where it is over."""
    begin: int = array.__array_interface__["data"][0]
    ways = [(count - 1) * stride for count, stride in zip(array.shape, array.strides, strict=True)]
    return begin + sum(min(way, 0) for way in ways), begin + sum(max(way, 0) for way in ways) + array.itemsize


def _over(arrays: list[tuple[int, int, str]]) -> Iterator[tuple[str, str]]:
    """Whose memory overlaps, of arrays with the bounds of theirs."""
    end, last = 0, ""
    for low, high, key in sorted(arrays):
        if low < end:
            yield last, key
        if high > end:
            end, last = high, key


def _both(one: str, other: str) -> str:
    return f"state[{one!r}] holds twice" if one == other else f"state[{one!r}] and state[{other!r}] share"
