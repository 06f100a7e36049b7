"""Actions: functions over a model.

An action is a module with `run(model, args)`. Its function `add_arguments(parser)`, if there is one, declares arguments
for the command line; `args` is the parser's namespace.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prototrain.actions.compact import load_compact
from prototrain.actions.restore import Restored, add_checkpoint, restore
from prototrain.errors import ConfigError
from prototrain.model import import_own
from prototrain.system.wording import did_you_mean

__all__ = ["BUILT_IN", "Action", "Restored", "add_checkpoint", "load_action", "load_compact", "restore"]

BUILT_IN = ("evaluate", "export", "find_batch_size", "find_lr", "inspect", "predict")


@dataclass(frozen=True)
class Action:
    """An action's functions.

    Attributes:
        run: called with the model and the parsed arguments.
        add_arguments: called with the parser.
        description: the module's docstring.
    """

    run: Callable[[Any, Namespace], None]
    add_arguments: Callable[[ArgumentParser], None]
    description: str | None


def load_action(name: str) -> Action:
    """Find an action by its name, or by the name of a module.

    Raises:
        ConfigError: there is no such module, or it has no `run`.
    """
    module = import_own(f"prototrain.actions.{name}" if name in BUILT_IN else name, what="action")
    if module is None:
        known = ", ".join(BUILT_IN)
        meant = did_you_mean(name, BUILT_IN)
        raise ConfigError(f"there is no action {name!r}: take {known} or a module with run(model, args){meant}")
    run = getattr(module, "run", None)
    if not callable(run):
        raise ConfigError(f"action {name}: the module has no run(model, args)")
    return Action(run, getattr(module, "add_arguments", _no_arguments), module.__doc__)


def _no_arguments(parser: ArgumentParser) -> None:
    pass
