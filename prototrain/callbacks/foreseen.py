"""What is known, before the first step, of the scalars that will be recorded."""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.base import Callback, ProxyCallback
from prototrain.callbacks.hyperparameters.learning_rate import LearningRate
from prototrain.errors import CallbackError

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_OTHERS = ("checkpoint", "cluster", "hyper", "perf")  # prefixes that callbacks use without announcing it
_KNOWN = ("prototrain", "keras", "tensorflow", "numpy")


class Foreseen:
    """The names of the scalars that callbacks will record.

    A callback that records calls `give`, in its `check_run` or before. One that decides calls `require` in its own,
    which comes later.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.forget()

    def forget(self) -> None:
        """A run begins."""
        self._given: dict[str, list[tuple[Callback, set[str] | None]]] = {}
        self._of_step: set[str] = set()  # the prefixes of the scalars of steps
        self._asked: list[tuple[str, str, Callback]] = []  # for such scalars: prefix, name, and by what

    def give(self, prefix: str, names: Collection[str] | None, who: Callback) -> None:
        """Announce scalars.

        Args:
            prefix: what their names start with, without the slash.
            names: their names without it; None if they are not known.
            who: records them.

        Raises:
            CallbackError: another callback records one of them as well.
        """
        mine = None if names is None else set(names)
        for other, theirs in self._given.setdefault(prefix, []):
            if other is not who and mine and theirs and (both := sorted(mine & theirs)):
                raise recorded_twice(f"{prefix}/{both[0]}", other.name, who.name)
        self._given[prefix].append((who, mine))

    def give_outputs(self, prefix: str, who: Callback) -> None:
        """Announce the scalars of the steps, whose names the first one shows."""
        self.give(prefix, None, who)
        self._of_step.add(prefix)

    def check_outputs(self) -> None:
        """Check, after the first call of a compiled step, that it has the scalars that were asked for.

        Raises:
            CallbackError: it has not, and nothing else may record one.
        """
        asked, self._asked = self._asked, []
        trainer: Any = self._trainer  # only a compiled one has `calls`
        if not asked or not trainer.is_compiled or trainer.calls.calls_summaries:  # tf.summary may record any
            return
        for prefix, inner, who in asked:
            if (
                inner in trainer.outputs
                or len(self._given[prefix]) > 1
                or f"{prefix}/{inner}" in trainer.monitors.names()
            ):
                continue
            known = sorted(f"{prefix}/{name}" for name in trainer.outputs)
            if not any(_may_record(callback) for callback in trainer.callbacks):
                raise CallbackError(f"{who.name}: {no_such_scalar(f'{prefix}/{inner}', known)}")

    def require(self, name: str, who: Callback) -> None:
        """Check that a scalar will be recorded, if that can be known.

        Where code of the user's runs that may record anything, a name that looks mistyped is only warned of.

        Raises:
            CallbackError: nothing records it.
        """
        if name in self._trainer.monitors.names() or name.partition("/")[0] in _OTHERS:
            return
        prefix = max((prefix for prefix in self._given if name.startswith(f"{prefix}/")), key=len, default="")
        given = self._given.get(prefix, [])
        inner = name.removeprefix(f"{prefix}/")
        if any(names is None or inner in names for _, names in given):
            if prefix in self._of_step:
                self._asked.append((prefix, inner, who))
            return
        said = f"{who.name}: {no_such_scalar(name, self._names(), near=self._likely(name))}"
        if not any(_may_record(callback) for callback in self._trainer.callbacks):
            raise CallbackError(said)
        looks_mistyped = difflib.get_close_matches(name, self._likely(name), n=1, cutoff=0.8)
        if given or looks_mistyped:  # of other names nothing is known where code of the user's may record them
            self._trainer.session.say_once(f"WARNING: {said}; going on, since a callback of yours may record it")

    def _names(self) -> list[str]:
        """What will be recorded; ``trn/*`` where only the prefix is known."""
        found = {
            f"{prefix}/{name}" for prefix, given in self._given.items() for _, names in given for name in names or "*"
        }
        return sorted(found)

    def _likely(self, name: str) -> list[str]:
        """The names that may have been meant."""
        stem = name.rpartition("/")[2]
        return [known.removesuffix("*") + stem if known.endswith("/*") else known for known in self._names()]


def no_such_scalar(name: str, known: Iterable[str], *, near: Iterable[str] | None = None) -> str:
    """What to say of a scalar that there is not: the nearest name, and those that there are."""
    there = list(known)
    found = difflib.get_close_matches(name, there if near is None else list(near), n=1)
    meant = f"did you mean {found[0]!r}? " if found else ""
    return f"there is no scalar {name!r}; {meant}there are: {', '.join(there) or 'none yet'}"


def recorded_twice(name: str, first: str, second: str, step: int | None = None) -> CallbackError:
    """The error for a second value of one name at one step."""
    at = "" if step is None else f" at step {step}"
    if step is not None and first == second:
        return CallbackError(f"{first} records {name!r} twice{at}; give the second value another name")
    return CallbackError(
        f"{first} and {second} both record {name!r}{at}; give one of them another prefix=, or leave it out"
    )


def _may_record(callback: Callback) -> bool:
    """Whether a callback may record scalars that are not announced: it is the user's, or calls what is."""
    if isinstance(callback, ProxyCallback) and _may_record(callback.callback):
        return True
    if _is_foreign(callback) or _is_foreign(callback.trainer):
        return True
    # Functions of the user's may reach the trainer; that of a schedule is traced.
    values = [] if isinstance(callback, LearningRate) else list(vars(callback).values())
    values += [item for value in values if isinstance(value, dict) for item in value.values()]
    values += [item for value in values if isinstance(value, list | tuple) for item in value]
    return any(map(_is_foreign, values))


def _is_foreign(thing: Any) -> bool:
    """Whether an object or a function comes from elsewhere than prototrain, what it stands on, and Python."""
    function = thing.func if isinstance(thing, functools.partial) else thing
    root = (getattr(function, "__module__", None) or "builtins").partition(".")[0]
    return root == "__main__" or root not in {*_KNOWN, *sys.stdlib_module_names}
