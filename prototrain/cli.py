"""The command line. TensorFlow is only imported inside the commands, so that ``--help`` is fast."""

from __future__ import annotations

import difflib
import os
import select
import signal
import sys
from collections.abc import Sequence

from prototrain import __version__
from prototrain.commands import action, config, new, report, run, runs, sweep, verify
from prototrain.commands.arguments import Parser
from prototrain.system.tracebacks import for_terminal

_COMMANDS = {
    "new": new.add,
    "run": run.add,
    "verify": verify.add,
    "config": config.add,
    "action": action.add,
    "runs": runs.add,
    "compare": runs.add_compare,
    "plot": report.add_plot,
    "report": report.add,
    "sweep": sweep.add,
}
_STDOUT = 1
_OTHER_WORDS = {"train": "run MODEL", "fit": "run MODEL"} | {name: f"action MODEL {name}" for name in action.ACTIONS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with the arguments after ``prototrain``, by default those of `sys.argv`.

    Returns:
        the exit code: 0 for success, 1 for an error, 130 after Ctrl-C. Wrong usage exits with 2, SIGTERM with 143, and
        other stop signals with 128 plus their number.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    _check_command(parser, arguments)
    options = parser.parse_args(arguments)
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
    for add in _COMMANDS.values():
        add(commands)
    return parser


def _check_command(parser: Parser, arguments: Sequence[str]) -> None:
    """Report an unknown command and suggest a similar one."""
    word = next(iter(arguments), "")
    if not word:
        parser.error(f"name a command: {', '.join(_COMMANDS)}")
    if word.startswith("-") or word in _COMMANDS:
        return
    near = difflib.get_close_matches(word.lower(), [*_COMMANDS, *_OTHER_WORDS], n=1)
    meant = f"did you mean prototrain {_OTHER_WORDS.get(near[0], near[0])}?" if near else f"take {', '.join(_COMMANDS)}"
    parser.error(f"there is no command {word!r}; {meant}")


if __name__ == "__main__":
    sys.exit(main())
