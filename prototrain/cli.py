# PYTHON_ARGCOMPLETE_OK
"""The command line. TensorFlow is imported inside the commands only, so that ``--help`` answers at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from prototrain import __version__
from prototrain.commands import action, compare, new, plot, report, run, runs, sweep, verify
from prototrain.system.tracebacks import for_terminal

_COMMANDS = (new, run, verify, action, runs, compare, plot, report, sweep)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: what stands behind ``prototrain``; `sys.argv` if None.

    Returns:
        the exit code: 0 done, 1 a clear error, 130 after Ctrl-C. Wrong usage exits with 2, SIGTERM with 143,
        other signals that stop with 128 and their number.
    """
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks how its line goes on
        from prototrain.commands.completion import complete

        complete(parser)
    options = parser.parse_args(arguments)
    try:
        options.command(options)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        sys.stderr.write(for_terminal(error))
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prototrain", description="Train TensorFlow models with a callback-driven trainer."
    )
    parser.add_argument("--version", action="version", version=f"prototrain {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
