"""The command line. TensorFlow is imported inside the commands only, so that ``--help`` answers at once."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prototrain import __version__
from prototrain.config_schema import REFERENCE
from prototrain.errors import ConfigError, PrototrainError
from prototrain.model import Model, import_own, load_model
from prototrain.quiet import import_tensorflow
from prototrain.tracebacks import format_error, python_in_graph

if TYPE_CHECKING:
    from prototrain.trainers.tower import TowerTrainer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: what stands behind ``prototrain``; `sys.argv` if None.

    Returns:
        the exit code: 0 done, 1 a clear error, 130 after Ctrl-C. Wrong usage exits with 2, SIGTERM with 143.
    """
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except PrototrainError as error:
        sys.stderr.write(python_in_graph(error.__cause__) or "")
        sys.stderr.write(f"prototrain: error: {' '.join(str(error).splitlines())}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # of the user's code, or a bug of ours
        sys.stderr.write(format_error(error))
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prototrain", description="Train TensorFlow models with a callback-driven trainer."
    )
    parser.add_argument("--version", action="version", version=f"prototrain {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="train a model, or go on training it",
        description="Train a model as its config says. The same command again goes on from the newest checkpoint.",
    )
    _add_model(run)
    run.add_argument(
        "--fresh", action="store_true", help="delete the experiment first and start anew; asks before it does"
    )
    run.add_argument("--yes", action="store_true", help="do not ask")
    run.add_argument("--debug", action="store_true", help="open an IPython shell after setup")
    run.add_argument(
        "--trainer", metavar="MODULE:CLASS", type=_reference, help="train with a trainer class of your own"
    )
    run.add_argument(
        "--towers",
        metavar="N|NAMES",
        help="train on N GPUs, on named devices (GPU:0,GPU:1) or on logical CPU devices (cpu:4); default: all GPUs",
    )
    run.add_argument(
        "--allow-changed-data", action="store_true", help="go on although the training data is not the same as before"
    )
    run.set_defaults(command=_run)
    action = commands.add_parser(
        "action",
        help="look at a model, or run a module over it",
        description="Run an action over a model: inspect, or a module of your own that has run(model, args).",
    )
    _add_model(action)
    action.add_argument("action", metavar="ACTION", help="inspect, or a module with run(model, args)")
    action.set_defaults(command=_act)
    return parser


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", help="the model's module, such as models.simple")
    command.add_argument(
        "-s",
        "--set",
        metavar="KEY=VALUE",
        type=_override,
        action="append",
        default=[],
        help="set a config key (VALUE is JSON, else text)",
    )


def _override(text: str) -> str:
    if not text.partition("=")[0].strip() or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE, such as model.batch_size=64")
    return text


def _reference(text: str) -> str:
    if not REFERENCE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not MODULE:CLASS, such as models.gan.trainer:GANTrainer")
    return text


def _run(options: argparse.Namespace) -> None:
    if options.debug and not sys.stdin.isatty():
        raise ConfigError(
            "--debug opens a shell, and there is no terminal to read from; run it at one, or leave it out"
        )
    if options.towers is not None:
        import_tensorflow()
        from prototrain.towers import prepare_devices

        prepare_devices(options.towers)  # before the model is imported, which may start TensorFlow
    keywords: dict[str, Any] = {}
    if options.trainer:
        import_tensorflow()
        keywords["trainer"] = _trainer_class(options.trainer)
        keywords["trainer"].prepare()  # likewise
    model = _load(options)
    model.config.validate()
    from prototrain.launch import launch

    launch(
        model,
        fresh=options.fresh,
        confirm=None if options.yes else _confirm,
        debug=options.debug,
        allow_changed_data=options.allow_changed_data,
        towers=options.towers,
        **keywords,
    )


def _act(options: argparse.Namespace) -> None:
    model = _load(options)
    model.config.validate()
    from prototrain.actions import load_action

    load_action(options.action)(model, options)


def _load(options: argparse.Namespace) -> Model:
    import_tensorflow()
    model = load_model(options.model)
    model.config.override(options.set)
    return model


def _confirm(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} There is no terminal to answer at; add --yes if that is what you want")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _trainer_class(name: str) -> type[TowerTrainer]:
    module_name, _, class_name = name.partition(":")
    module = import_own(module_name, what="trainer")
    if module is None:
        raise ConfigError(f"--trainer: there is no module {module_name!r} here or among the installed packages")
    found = getattr(module, class_name, None)
    from prototrain.trainers.tower import TowerTrainer

    if found is None:
        raise ConfigError(f"--trainer: module {module_name} has no {class_name}")
    if not isinstance(found, type) or not issubclass(found, TowerTrainer):
        raise ConfigError(f"--trainer: {name} is not a subclass of TowerTrainer")
    try:
        inspect.signature(found).bind(None, experiment=None)
    except TypeError as error:
        raise ConfigError(f"--trainer: {name} must take (model, *, experiment=None): {error}") from error
    return found


if __name__ == "__main__":
    sys.exit(main())
