"""The values that variables had before their first training, for networks that outlast a trainer.

A model may make its layers in its constructor. Each trainer of it then trains the same variables, and a fresh run is to
begin where the first one began.
"""

from __future__ import annotations

import hashlib
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
    """A variable that was trained in this process; `first` is None if it was made during the first run itself."""

    holder: weakref.ref[Any]
    first: Values | None
    after: bytes = b""  # a digest of what the last training left


_entries: dict[int, _Entry] = {}  # by the id of what holds the variable, of Keras if that does


def restore_first_values(holders: Mapping[str, Any], lasting: Collection[str]) -> tuple[list[str], list[str]]:
    """Give the variables that earlier trainers have trained the values that they had before.

    Those that were changed since, such as by loading weights, keep the new values, and begin there from now on.

    Args:
        holders: the variables of a trainer that makes its first step, by name.
        lasting: the names of those that existed before the trainer.

    Returns:
        the names of those that got their first values back, and of those whose first values are not known.
    """
    found: list[str] = []
    unknown: list[str] = []
    for name in lasting:
        present, entry = _read(holders[name]), _entry(holders[name])
        if entry is None:
            _keep(holders[name], present)
        elif entry.first is None:
            unknown.append(name)
        elif _digest(present) != entry.after:
            entry.first = present
        elif not all(map(np.array_equal, present, entry.first)):
            found.append(name)
            for index, part in enumerate(_parts(holders[name])):
                part.assign(entry.first[min(index, len(entry.first) - 1)])  # there may be more towers now
    return found, unknown


def note_trained(holders: Mapping[str, Any], lasting: Collection[str]) -> None:
    """Note that variables were trained, and what that left of those that existed before the trainer."""
    for name, holder in holders.items():
        entry = _entry(holder) or _keep(holder, None)
        if name in lasting:
            entry.after = _digest(_read(holder))


def _entry(holder: Any) -> _Entry | None:
    entry = _entries.get(id(holder))
    return entry if entry is not None and entry.holder() is holder else None


def _keep(holder: Any, first: Values | None) -> _Entry:
    key = id(holder)
    _entries[key] = _Entry(weakref.ref(holder, lambda _: _entries.pop(key, None)), first)
    return _entries[key]


def _parts(holder: Any) -> list[Any]:
    return list(components(holder if isinstance(holder, tf.Variable) else holder.value))


def _read(holder: Any) -> Values:
    return [np.array(tf.convert_to_tensor(part)) for part in _parts(holder)]


def _digest(values: Values) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(values[0]).tobytes(), digest_size=16).digest()
