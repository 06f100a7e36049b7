"""A function of tensors, traced once for each form of its arguments, as far as that is worth it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

MOST_TRACES = 32
"""How many are kept; the one that was not used for longest goes first."""
RELAXED_FROM = 8
"""From how many traces on other sizes than that of the batch may vary within one."""
OFTEN = 16
"""After so many traces, and again after ten times as many, there is a line about it."""

Spec = tuple[Any, ...]


class Traces:
    """Compiles a function for the arguments that it is called with.

    Each shape has a trace of its own, so that the function may do anything with it, but batches of other sizes share
    one if the function can be traced with a size that is open. Where there are many shapes, so do other axes.

    Args:
        function: from a list of tensors, or structures of them, to such a list.
        label: what messages call it.
        log: prints a line for the user.

    Attributes:
        made: how many times the function was traced.
    """

    def __init__(
        self,
        function: Callable[[list[Any]], list[Any]],
        label: str,
        *,
        log: Callable[[str], None] = print,
    ) -> None:
        self._function = function
        self._label = label
        self._log = log
        self._lock = threading.Lock()
        self._traces: list[tuple[Spec, Any]] = []  # the one that was used last comes first
        self._untraceable: set[Spec] = set()
        self.made = 0

    def __call__(self, values: list[Any]) -> list[Any]:
        """Call the function; from any thread."""
        flat = tf.nest.flatten(values)
        with self._lock:
            found = self._find(flat) or self._make(values, tuple(map(tf.type_spec_from_value, flat)))
        result: list[Any] = found(values)
        return result

    def _find(self, flat: list[Any]) -> Any:
        for index, (spec, traced) in enumerate(self._traces):
            if len(spec) == len(flat) and all(map(_takes, spec, flat)):
                if index:
                    self._traces.insert(0, self._traces.pop(index))
                return traced
        return None

    def _make(self, values: list[Any], exact: Spec) -> Any:
        for spec in self._relaxed(exact):
            try:
                return self._trace(values, spec)
            except Exception:  # whatever is wrong, if anything is wrong but the open size, the exact shape shows it
                self._untraceable.add(spec)
        return self._trace(values, exact)

    def _relaxed(self, exact: Spec) -> Iterator[Spec]:
        for known, _ in list(self._traces):
            if len(known) != len(exact):
                continue
            spec = tuple(one.most_specific_common_supertype([other]) for one, other in zip(exact, known, strict=True))
            if None in spec or spec in self._untraceable or not all(map(_has_rank, spec)):
                continue
            if len(self._traces) >= RELAXED_FROM or all(map(_differs_in_size_only, spec, exact)):
                yield spec

    def _trace(self, values: list[Any], spec: Spec) -> Any:
        self.made += 1
        function = tf.function(self._function, autograph=False)
        traced = function.get_concrete_function(tf.nest.pack_sequence_as(values, spec))
        self._traces.insert(0, (spec, traced))
        del self._traces[MOST_TRACES:]
        if self.made in (OFTEN, 10 * OFTEN, 100 * OFTEN):
            self._log(
                f"{self._label} was traced {self.made} times, for inputs of so many shapes or types (the last: "
                f"{in_words(spec)}), and tracing takes long; pad them to a few shapes"
            )
        return traced


def in_words(spec: Spec) -> str:
    """Types and shapes, such as ``float32[None, 4]``."""
    return ", ".join(f"{one.dtype.name}{_shape(one)}" for one in spec)


def _shape(spec: Any) -> str:
    return "[...]" if spec.shape.rank is None else f"{spec.shape.as_list()}"


def _takes(spec: Any, value: Any) -> bool:
    return bool(spec.is_compatible_with(value))


def _has_rank(spec: Any) -> bool:
    return spec.shape.rank is not None


def _differs_in_size_only(relaxed: Any, exact: Any) -> bool:
    return bool(relaxed.shape[1:] == exact.shape[1:]) if relaxed.shape.rank else True
