"""The command line. TensorFlow is imported inside the commands only, so that ``--help`` answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from prototrain import __version__
from prototrain.commands import action, compare, new, plot, report, run, runs, sweep
from prototrain.errors import PrototrainError
from prototrain.system.terminal import one_line
from prototrain.system.tracebacks import format_error, out_of_memory, python_in_graph

_COMMANDS = (new, run, action, runs, compare, plot, report, sweep)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: what stands behind ``prototrain``; `sys.argv` if None.

    Returns:
        the exit code: 0 done, 1 a clear error, 130 after Ctrl-C. Wrong usage exits with 2, SIGTERM with 143,
        other signals that stop with 128 and their number.
    """
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except PrototrainError as error:
        sys.stderr.write(python_in_graph(error.__cause__) or "")
        sys.stderr.write(f"prototrain: error: {one_line(' '.join(str(error).splitlines()))}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # of the user's code, or a bug of ours
        asked = out_of_memory(error)
        said = format_error(error) if asked is None else f"prototrain: error: out of memory: {one_line(asked)}\n"
        sys.stderr.write(said)
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
