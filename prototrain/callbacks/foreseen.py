"""What is known, before the first step, of the scalars that will come."""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.base import Callback, ProxyCallback
from prototrain.callbacks.hyperparameters.learning_rate import LearningRate
from prototrain.errors import CallbackError

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_KNOWN = ("prototrain", "keras", "tensorflow", "numpy")


class Foreseen:
    """The names that evaluations will give, for callbacks that go by one of them.

    Who measures says what it gives, in its `before_train` or before; who decides asks in its own, which comes later.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._given: dict[str, set[str] | None] = {}

    def forget(self) -> None:
        """A run begins."""
        self._given = {}

    def give(self, prefix: str, names: Collection[str] | None) -> None:
        """Somebody will record scalars of these names, None if they are not known, with a prefix."""
        before = self._given.get(prefix, set())
        self._given[prefix] = None if names is None or before is None else before | set(names)

    def require(self, name: str, who: Callback) -> None:
        """Check that a scalar will come, as far as that is known: where its prefix is that of data which is evaluated.

        Where code of the user's runs along, which may record anything, what is not known to come is only warned of.

        Raises:
            CallbackError: it will not.
        """
        prefix = max((prefix for prefix in self._given if name.startswith(f"{prefix}/")), key=len, default=None)
        names = None if prefix is None else self._given[prefix]
        known = [f"{prefix}/{each}" for each in sorted(names or ())]
        if not known or name in known or name in self._trainer.monitors.names():
            return
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        said = f"{who.name}: there is no scalar {name!r}; {meant}there are: {', '.join(known)}"
        if not any(_may_record(callback) for callback in self._trainer.callbacks):
            raise CallbackError(said)
        self._trainer.session.say_once(f"WARNING: {said}; going on, since a callback of yours may record it")


def _may_record(callback: Callback) -> bool:
    """Whether a callback may record scalars that nobody has foreseen: it is the user's, or calls what is."""
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
