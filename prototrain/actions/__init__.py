"""Functions over a model beside its training. An action is a module with `run(model, args)`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from prototrain.errors import ConfigError
from prototrain.model import import_own

BUILT_IN = ("inspect",)


def load_action(name: str) -> Callable[[Any, Namespace], None]:
    """Find an action by its name, or by the module of the user's own that has it.

    Raises:
        ConfigError: there is no such module, or it has no `run`.
    """
    module = import_own(f"prototrain.actions.{name}" if name in BUILT_IN else name, what="action")
    if module is None:
        raise ConfigError(f"there is no action {name!r}: take {', '.join(BUILT_IN)} or a module with run(model, args)")
    run = getattr(module, "run", None)
    if not callable(run):
        raise ConfigError(f"action {name}: the module has no run(model, args)")
    found: Callable[[Any, Namespace], None] = run
    return found
