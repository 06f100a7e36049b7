"""Whether what a checkpoint is to hold, or holds, is finite."""

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
    """Looks for variables of a trainer's state that are not finite.

    One that was not from the start, such as a mask of -inf or a best value so far, is meant to be so and left alone; if
    it was infinite then, a NaN in it is found all the same. Integers, truth values and texts are always finite.

    Attributes:
        ignored: regular expressions; variables whose names one of them matches are left alone.
    """

    def __init__(self) -> None:
        self.ignored: list[str] = []
        self._known: dict[str, str | None] = {}  # what each variable was when it was first seen

    def begin(self, variables: Mapping[str, Any]) -> dict[str, str]:
        """Take note of what is not finite from the start, of variables that were not there before.

        Args:
            variables: as the trainer was built, by name.

        Returns:
            what is not finite among them.
        """
        new = {name: variable for name, variable in variables.items() if name not in self._known}
        found = not_finite(new)
        self._known.update({name: found.get(name) for name in new})
        return found

    def find(self, values: Mapping[str, Any]) -> dict[str, str]:
        """What is not finite among some values and should be: "NaN" or "infinite" by name."""
        looked_at = {
            name: value
            for name, value in values.items()
            if self._known.get(name) != NAN and not any(re.match(pattern, name) for pattern in self.ignored)
        }
        return {name: kind for name, kind in not_finite(looked_at).items() if kind != self._known.get(name)}


def not_finite(values: Mapping[str, Any]) -> dict[str, str]:
    """What is not finite among tensors, variables and arrays: "NaN" or "infinite" by name."""
    found = {}
    for name, value in values.items():
        dtype = tf.as_dtype(value.dtype)
        if dtype.is_floating or dtype.is_complex:
            array = np.asarray(value if isinstance(value, np.ndarray) else tf.convert_to_tensor(value))
            if not _all_finite(array):
                found[name] = NAN if np.isnan(array).any() else INFINITE
    return found


def _all_finite(array: np.ndarray[Any, Any]) -> bool:
    # In parts that stay in the processor's cache: an array of as many truth values would take longer to make.
    flat = array.reshape(-1)
    return all(np.isfinite(flat[begin : begin + _PART]).all() for begin in range(0, flat.size, _PART))


def in_words(found: Mapping[str, str]) -> str:
    """What `not_finite` has found, in words."""
    kinds: dict[str, list[str]] = {}
    for name, kind in found.items():
        kinds.setdefault(kind, []).append(name)
    listed = [(some_of(names, _SHOWN), "is" if len(names) == 1 else "are", kind) for kind, names in kinds.items()]
    return "; ".join(map(" ".join, listed))
