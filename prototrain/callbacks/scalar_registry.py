"""The names of a run's scalars: errors for misspelt names, and for two sources of one scalar."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prototrain.callbacks.base import Callback, innermost
from prototrain.errors import CallbackError
from prototrain.system.wording import did_you_mean

_OF_ENGINE = ("checkpoint/", "cluster/", "hyper/", "perf/")  # are not announced
_CALLS_FUNCTIONS = ("CallbackFactory", "LambdaCallback", "ProcessTensors", "RunOp")


class ScalarRegistry:
    """Knows which callback records which scalar.

    Callbacks that record scalars announce them before the first step; callbacks that decide by a scalar require it
    then. Names that are known only during training are announced as ``*``, and are not checked.
    """

    def __init__(self) -> None:
        self._announced: dict[str, Callback] = {}  # by name; "trn/*" if only the prefix is known
        self._last: dict[str, tuple[int, str]] = {}  # the step and the source of each name's last value
        self._source: str | None = None

    def announce(self, callback: Callback, prefix: str, names: Iterable[str] = ("*",)) -> None:
        """Announce the scalars that a callback will record; called in its `check_run` or before.

        Raises:
            CallbackError: another callback records one of them as well.
        """
        for name in (f"{prefix}/{inner}" for inner in names):
            other = self._announced.setdefault(name, callback)
            if other is not callback and not name.endswith("/*"):
                raise _recorded_twice(name, other.name, callback.name)

    def require(self, callback: Callback, name: str) -> None:
        """Check, in `check_run`, that the scalar which a callback decides by will be recorded.

        The user's code may record any scalar; with such code, a name that looks misspelt gives a warning only.

        Raises:
            CallbackError: nothing records it.
        """
        trainer = callback.trainer
        open_prefixes = tuple(one[:-1] for one in self._announced if one.endswith("/*"))
        recorded = trainer.monitors.names()
        if name in self._announced or name in recorded or name.startswith((*_OF_ENGINE, *open_prefixes)):
            return
        text = f"{callback.name}: {no_such_scalar(name, self._announced)}"
        if not _is_of_user(trainer) and not any(map(runs_code_of_user, trainer.callbacks)):
            raise CallbackError(text)
        if "did you mean" in text:
            trainer.run.say_once(f"WARNING: {text}")

    @contextmanager
    def recorded_by(self, source: str) -> Iterator[None]:
        """Context manager in which scalars are recorded by the callback of this name."""
        outer, self._source = self._source, source
        try:
            yield
        finally:
            self._source = outer

    def record(self, names: Iterable[str], step: int) -> bool:
        """Register values that are recorded now; returns whether a callback records them.

        Raises:
            CallbackError: one of the names has a value at this step.
        """
        if self._source is None:
            return False
        for name in names:
            before, source = self._last.get(name, (-1, ""))
            if before == step:
                raise _recorded_twice(name, source, self._source, f" at step {step}")
            self._last[name] = (step, self._source)
        return True


def no_such_scalar(name: str, known: Iterable[str]) -> str:
    """An error text with the nearest name and all known ones."""
    names = sorted(known)
    stem = name.rpartition("/")[2]
    guess = did_you_mean(name, [one.replace("/*", f"/{stem}") for one in names])
    return f"there is no scalar {name!r}{guess or ';'} there are: {', '.join(names) or 'none yet'}"


def _recorded_twice(name: str, first: str, second: str, at: str = "") -> CallbackError:
    if at and first == second:
        return CallbackError(f"{first} records {name!r} twice{at}; give the second value another name")
    return CallbackError(
        f"{first} and {second} both record {name!r}{at}; give one of them another prefix=, or leave it out"
    )


def runs_code_of_user(callback: Callback) -> bool:
    """Whether a callback is the user's, or calls functions of the user."""
    inner = innermost(callback)
    wrapped = inner.wraps or inner
    return _is_of_user(wrapped) or type(wrapped).__name__ in _CALLS_FUNCTIONS


def _is_of_user(value: object) -> bool:
    return not type(value).__module__.startswith(("prototrain.", "keras."))
