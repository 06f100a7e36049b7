"""Registry of scalar names. It reports misspelt names and scalars with two sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prototrain.callbacks.base import Callback, innermost
from prototrain.errors import CallbackError
from prototrain.system.wording import did_you_mean

_OF_ENGINE = ("checkpoint/", "cluster/", "hyper/", "perf/")  # not announced
_CALLS_FUNCTIONS = ("CallbackFactory", "LambdaCallback", "ProcessTensors", "RunOp")


class ScalarRegistry:
    """Maps scalars to the callbacks that record them.

    Before the first step, callbacks announce the scalars that they record and require the scalars that they read.
    Names that are known only during training are announced as ``*`` and are not checked.
    """

    def __init__(self) -> None:
        self._announced: dict[str, Callback] = {}  # by name; "trn/*" if only the prefix is known
        self._last: dict[str, tuple[int, str]] = {}  # step and source of the latest value, by name
        self._source: str | None = None

    def announce(self, callback: Callback, prefix: str, names: Iterable[str] = ("*",)) -> None:
        """Announce the scalars that a callback will record. Call it in `check_run` or earlier.

        Raises:
            CallbackError: another callback records one of the scalars.
        """
        for name in (f"{prefix}/{inner}" for inner in names):
            other = self._announced.setdefault(name, callback)
            if other is not callback and not name.endswith("/*"):
                raise _recorded_twice(name, other.name, callback.name)

    def require(self, callback: Callback, name: str) -> None:
        """Check that a scalar that a callback reads will be recorded. Call it in `check_run`.

        User code may record any scalar. If the run has user code, a name that looks misspelt only prints a warning.

        Raises:
            CallbackError: no callback records the scalar.
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
        """Context manager that attributes recorded scalars to a callback, by its label."""
        outer, self._source = self._source, source
        try:
            yield
        finally:
            self._source = outer

    def record(self, names: Iterable[str], step: int) -> bool:
        """Register scalars at a step. Return False if they come from outside a callback, which is not checked.

        Raises:
            CallbackError: one of the names already has a value at this step.
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
    """Return an error message with the closest match and all known names."""
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
    """Return whether a callback is user code or calls user functions."""
    inner = innermost(callback)
    wrapped = inner.wraps or inner
    return _is_of_user(wrapped) or type(wrapped).__name__ in _CALLS_FUNCTIONS


def _is_of_user(value: object) -> bool:
    return not type(value).__module__.startswith(("prototrain.", "keras."))
