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
steps twice, and once more with K interruptions (SIGKILL, and SIGTERM as the last of several), each followed by the
same command; batches, scalars, variables and callbacks' states are compared bit for bit. Experiments go to a temporary
directory.
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
    option(parser, "--steps N", "how many steps to train (default: 60)", type=whole, default=60)
    option(parser, "--interruptions K", "how often to interrupt the run (default: 3)", type=whole, default=3)
    option(parser, "--seed S", "of the steps that are saved and interrupted (default: 0)", type=int, default=0)
    option(parser, "--keep DIR", "keep the records, experiments and output in DIR")
    option(parser, "--json", "print the result as JSON")


def _verify(options: argparse.Namespace) -> None:
    program: list[Any] = options.program
    if program[:1] == ["--"] and len(program) > 1:
        program = [program[1:]]
    elif not program or program[0].startswith("-"):
        options.wrong_usage("name a model, or a command after --")
    elif program[0].endswith(".py"):
        options.wrong_usage(f"{program[0]} is a script; say prototrain verify -- python {' '.join(program)}")
    else:  # the options may also come after the model
        after = argparse.ArgumentParser(prog="prototrain verify", add_help=False, allow_abbrev=False)
        _add_options(after)
        program[1:] = after.parse_known_args(program[1:], options)[1]
    chosen = {name: getattr(options, name) for name in ("steps", "interruptions", "seed", "keep")}
    try:
        result = verify(*program, announce=partial(say, to_stderr=True), **chosen)
    except ProgramError as error:
        print(printable(str(error)), file=sys.stderr)
        raise SystemExit(_FAILED) from None
    except ConfigError as error:
        options.wrong_usage(str(error))
    print(json.dumps(result.as_json(), indent=2) if options.json else printable(str(result)))
    if not result:
        raise SystemExit(1)
