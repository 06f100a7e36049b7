"""`prototrain verify`: find out whether a program repeats itself and resumes exactly after a kill."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Any

from prototrain.commands.arguments import option, whole
from prototrain.errors import ConfigError
from prototrain.system.terminal import printable, say
from prototrain.verify import ProgramError, verify

_FAILED = 3
_DESCRIPTION = """
Find out by trial whether a program repeats itself, and whether it resumes exactly after it was killed. It trains N
steps twice, and once more with K interruptions (SIGKILL, and SIGTERM the last time), each followed by the same command;
batches, scalars, variables and callbacks' states are compared bit for bit. Experiments go to a temporary directory.
"""


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    command = commands.add_parser(
        "verify",
        help="find out whether a program repeats itself and resumes exactly after a kill",
        usage="prototrain verify [options] MODEL [options of run]\n       "
        "prototrain verify [options] -- COMMAND [ARGUMENT ...]",
        description=_DESCRIPTION,
        epilog="exit code: 0 yes, 1 no, 2 wrong usage, 3 the program failed",
    )
    _add_options(command)
    command.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="MODEL", help="the model's module, or -- and a command"
    )
    command.set_defaults(command=_verify, wrong_usage=command.error)


def _add_options(parser: argparse.ArgumentParser) -> None:
    # No defaults, because options after MODEL must not reset those before it.
    unset: dict[str, Any] = {"default": argparse.SUPPRESS}
    option(parser, "--steps N", "how many steps to train (default: 60)", type=whole, **unset)
    option(parser, "--interruptions K", "how often to interrupt the run (default: 3)", type=whole, **unset)
    option(parser, "--seed S", "of the steps that are saved and interrupted (default: 0)", type=int, **unset)
    option(parser, "--keep DIR", "keep the records, experiments and output in DIR", **unset)
    option(parser, "--json", "print the result as JSON", **unset)


def _verify(options: argparse.Namespace) -> None:
    command, chosen = _command(options)
    as_json = chosen.pop("json", False)
    try:
        result = verify(*command, announce=partial(say, to_stderr=True), **chosen)
    except ProgramError as error:
        print(printable(str(error)), file=sys.stderr)
        raise SystemExit(_FAILED) from None
    except ConfigError as error:
        options.wrong_usage(str(error))
    print(json.dumps(result.as_json(), indent=2) if as_json else printable(str(result)))
    if not result.ok:
        raise SystemExit(1)


def _command(options: argparse.Namespace) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of `verify` for the program, and the options, which may come before or after MODEL."""
    names = ("steps", "interruptions", "seed", "keep", "json")
    chosen = {name: getattr(options, name) for name in names if hasattr(options, name)}
    program: list[str] = options.program
    if program[:1] == ["--"]:
        if len(program) == 1:
            options.wrong_usage("there is no command behind --")
        return [program[1:]], chosen
    if not program or program[0].startswith("-"):
        options.wrong_usage("name a model, or a command behind --")
    if program[0].endswith(".py"):
        options.wrong_usage(f"{program[0]} is a script; say prototrain verify -- python {' '.join(program)}")
    mine = argparse.ArgumentParser(prog="prototrain verify", add_help=False, allow_abbrev=False)
    _add_options(mine)
    found, rest = mine.parse_known_args(program[1:])
    return [program[0], *rest], {**chosen, **vars(found)}
