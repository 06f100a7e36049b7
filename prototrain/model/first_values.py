"""The values that variables had before their first training, for networks that outlast a trainer.

A model may make its layers in its constructor. Each trainer of it then trains the same variables, and a fresh run is to
begin where the first one began.
"""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.towers import components

Values = list[np.ndarray[Any, Any]]
"""What each tower's copy of a variable holds."""


@dataclass
class _Entry:
    """A variable that was trained in this process; `first` is None if nothing was kept of it."""

    holder: weakref.ref[Any]
    first: Values | None
    after: bytes = b""  # a digest of what the last training left
    trained_at: int = 0


_entries: dict[int, _Entry] = {}  # by the id of what holds the variable, of Keras if that does
_clock = itertools.count(1)


def now() -> int:
    """A number that grows from call to call, to tell what came first."""
    return next(_clock)


def begin_anew(holders: Mapping[str, Any], outlasting: Collection[str], made_at: int) -> tuple[list[str], list[str]]:
    """Give the variables that earlier trainers have trained the values that they had before.

    Those that were changed since, such as by loading weights, keep the new values, and begin there from now on.

    Args:
        holders: the variables of a trainer that makes its first step, by name.
        outlasting: the names of those that may outlast it.
        made_at: when the trainer was made, see `now`; what was trained since is trained in turns, on purpose.

    Returns:
        the names of those that got their first values back, and of those whose first values were not kept.
    """
    found: list[str] = []
    lost: list[str] = []
    for name in outlasting:
        holder = holders[name]
        entry = _entries.get(id(holder))
        if entry is None or entry.holder() is not holder:
            _keep(holder, _read(holder))
        elif entry.trained_at > made_at:
            continue
        elif entry.first is None:
            lost.append(name)
        elif _digest(now_there := _read(holder)) == entry.after:
            found += [name] * (not _equal(now_there, entry.first))
        else:
            entry.first = now_there
    for name in found:
        _write(holders[name], _entries[id(holders[name])].first or [])
    return found, lost


def note_trained(holders: Mapping[str, Any], outlasting: Collection[str]) -> None:
    """Note that variables were trained, and what that left of those that may outlast the trainer."""
    at = now()
    for name, holder in holders.items():
        entry = _entries.get(id(holder))
        if entry is None or entry.holder() is not holder:
            entry = _keep(holder, None)
        entry.trained_at = at
        if name in outlasting:
            entry.after = _digest(_read(holder))


def _keep(holder: Any, first: Values | None) -> _Entry:
    key = id(holder)
    _entries[key] = _Entry(weakref.ref(holder, lambda _: _entries.pop(key, None)), first)
    return _entries[key]


def _parts(holder: Any) -> list[Any]:
    return list(components(holder if isinstance(holder, tf.Variable) else holder.value))


def _read(holder: Any) -> Values:
    return [np.array(tf.convert_to_tensor(part)) for part in _parts(holder)]


def _write(holder: Any, values: Values) -> None:
    for index, part in enumerate(_parts(holder)):
        part.assign(values[min(index, len(values) - 1)])


def _equal(first: Values, second: Values) -> bool:
    return len(first) == len(second) and all(map(np.array_equal, first, second))


def _digest(values: Values) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(values[0]).tobytes(), digest_size=16).digest()
