"""Finds NaN and infinite values in variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.system.wording import some_of

NAN, INFINITE = "NaN", "infinite"
_SHOWN = 4
_PART = 2**18  # elements


class FiniteState:
    """Finds variables that are not finite, except those that were not at the start, such as a mask of -inf.

    A NaN is also found in a variable that was infinite at the start.

    Attributes:
        ignored: regular expressions; variables whose names match one of them are skipped.
    """

    def __init__(self) -> None:
        self.ignored: list[str] = []
        self._known: dict[str, str | None] = {}  # what each variable was at the start

    def begin(self, variables: Mapping[str, Any]) -> dict[str, str]:
        """Record which variables are not finite before training.

        Args:
            variables: by name; those of an earlier call are skipped.

        Returns:
            "NaN" or "infinite" by name.
        """
        new = {name: variable for name, variable in variables.items() if name not in self._known}
        found = not_finite(new)
        self._known.update({name: found.get(name) for name in new})
        return found

    def find(self, values: Mapping[str, Any]) -> dict[str, str]:
        """The values that are not finite and should be: "NaN" or "infinite" by name."""
        checked = {
            name: value
            for name, value in values.items()
            if self._known.get(name) != NAN and not any(re.match(pattern, name) for pattern in self.ignored)
        }
        return {name: kind for name, kind in not_finite(checked).items() if kind != self._known.get(name)}


def not_finite(values: Mapping[str, Any]) -> dict[str, str]:
    """The tensors, variables and arrays that are not finite: "NaN" or "infinite" by name."""
    found = {}
    for name, value in values.items():
        dtype = tf.as_dtype(value.dtype)
        if dtype.is_floating or dtype.is_complex:
            array = np.asarray(value if isinstance(value, np.ndarray) else tf.convert_to_tensor(value))
            flat = array.reshape(-1)  # in parts that fit the processor's cache
            if not all(np.isfinite(flat[begin : begin + _PART]).all() for begin in range(0, flat.size, _PART)):
                found[name] = NAN if np.isnan(array).any() else INFINITE
    return found


def in_words(found: Mapping[str, str]) -> str:
    """The result of `not_finite` as a sentence."""
    kinds: dict[str, list[str]] = {}
    for name, kind in found.items():
        kinds.setdefault(kind, []).append(name)
    listed = [(some_of(names, _SHOWN), "is" if len(names) == 1 else "are", kind) for kind, names in kinds.items()]
    return "; ".join(map(" ".join, listed))
