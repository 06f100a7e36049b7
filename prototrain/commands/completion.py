"""Shell completion with argcomplete (the extra `completion`). TensorFlow is not imported."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

from prototrain.commands.action import ACTIONS
from prototrain.commands.run import TRAINERS
from prototrain.config.schema import SCHEMA
from prototrain.model.loading import modules_here


def complete(parser: argparse.ArgumentParser) -> None:
    """If the shell asks for completions, answer and end the process."""
    try:
        import argcomplete
    except ModuleNotFoundError:
        raise SystemExit(1) from None  # any output would appear in the command line of the user
    completers = {
        "model": models,
        "program": models,
        "action": lambda **_: ACTIONS,
        "trainer": lambda **_: TRAINERS,
        "set": settings,
    }
    for argument in _arguments(parser):
        if argument.dest in completers:
            argument.completer = completers[argument.dest]  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for argument in parser._actions:  # argparse has no public way
        yield argument
        if isinstance(argument, argparse._SubParsersAction):
            for command in argument.choices.values():
                yield from _arguments(command)


def models(prefix: str = "", **_: Any) -> list[str]:
    """Return the modules and packages in the current directory, one level below the prefix."""
    return modules_here(prefix.rpartition(".")[0])


def settings(prefix: str = "", **_: Any) -> Iterable[str]:
    """Return the keys with an equals sign, or, after the equals sign, the choices of a key."""
    key, equals, _value = prefix.partition("=")
    if not equals:
        return [f"{key}=" for key in SCHEMA]
    spec = SCHEMA.get(key)
    values = () if spec is None else ("true", "false") if spec.type == "bool" else spec.choices
    return [f"{key}={value}" for value in values]
