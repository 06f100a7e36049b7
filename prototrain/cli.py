"""The command line. TensorFlow is only imported inside the commands, so that ``--help`` is fast."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from prototrain import __version__
from prototrain.commands import action, config, new, report, run, runs, sweep, verify
from prototrain.commands.arguments import Parser
from prototrain.system.tracebacks import for_terminal

_COMMANDS = (
    *(new.add, run.add, verify.add, config.add, action.add),
    *(runs.add, runs.add_compare, report.add_plot, report.add, sweep.add),
)
_STDOUT = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with the arguments after ``prototrain``, by default those of `sys.argv`.

    Returns:
        the exit code: 0 for success, 1 for an error, 130 after Ctrl-C. Wrong usage exits with 2, SIGTERM with 143, and
        other stop signals with 128 plus their number.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - None if the caller has closed it
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError):  # not a text file of Python
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a locale may lack characters
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_reader_gone():
            os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)  # Python flushes it at exit
            return 128 + signal.SIGPIPE
        sys.stderr.write(for_terminal(error))
        return 1
    return 0


def _is_reader_gone() -> bool:
    """Return whether the program that reads the output has ended, as in ``prototrain runs | head``."""
    output = select.poll()
    output.register(_STDOUT, 0)
    return bool(output.poll(0))  # reports errors only


def _parser() -> Parser:
    parser = Parser(
        prog="prototrain",
        usage="prototrain COMMAND ...",
        description="Train TensorFlow models with a callback-driven trainer.",
        epilog="The options of a command: prototrain COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"prototrain {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", prog="prototrain")
    for add in _COMMANDS:
        add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
