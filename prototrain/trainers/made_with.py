"""What the step of a trainer of the user's own, in Python, depends on besides its code."""

from __future__ import annotations

import dis
import os
from types import FunctionType
from typing import TYPE_CHECKING, Any

from prototrain.system.contents import attributes_of, is_own
from prototrain.system.own_code import attributes, noted, reached

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_PLAIN = (bool, bytes, complex, float, int, str, type(None))


def made_with(trainer: Trainer) -> dict[str, Any] | None:
    """What a trainer has been given, and the values that its code names, as JSON can hold them; None of one whose step
    is not the user's own.

    What is in `trainer.state` is left out, since checkpoints have it, and so is where the run lies. The first time that
    it is asked counts, when a run begins: later ones find what training has made of it.
    """
    kind = type(trainer)
    if not is_own(kind.run_step):
        return None
    found: dict[str, Any] = noted(
        trainer, lambda: {**attributes(trainer, besides=_not_given(trainer)), **reached(kind)}
    )
    return found


def _not_given(trainer: Trainer) -> set[str]:
    saved = [entry for entry in trainer.state.values() if not isinstance(entry, _PLAIN)]
    place = None if trainer.experiment is None else os.path.abspath(trainer.experiment.directory)
    found = _set_by_others(type(trainer))
    for name, value in attributes_of(trainer, found).items():
        is_place = isinstance(value, str) and os.path.abspath(value) == place
        if is_place or any(value is entry for entry in saved):
            found.add(name)
    return found


def _set_by_others(kind: type) -> set[str]:
    """The attributes that a class's bases set which are not the user's own."""
    functions = [member for base in kind.__mro__ if not is_own(base) for member in vars(base).values()]
    ops = [op for one in functions if isinstance(one, FunctionType) for op in dis.get_instructions(one)]
    return {str(op.argval) for op in ops if op.opname == "STORE_ATTR"}
