"""`prototrain action`: a function over a model beside its training."""

from __future__ import annotations

import argparse
from typing import Any, Final

from prototrain.commands.arguments import add_model, add_overrides, load
from prototrain.system.quiet import import_tensorflow

ACTIONS: Final = ("evaluate", "export", "find_batch_size", "find_lr", "inspect", "predict")
"""Those that prototrain has itself; `prototrain.actions`, which imports TensorFlow, knows them too."""


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    action = commands.add_parser(
        "action",
        help="evaluate, export or inspect a model, predict with it, or run a module over it",
        description=f"Run an action over a model: {', '.join(ACTIONS)}, or a module of your own.",
        epilog="What an action takes itself: prototrain action MODEL ACTION --help",
    )
    add_model(action)
    action.add_argument("action", metavar="ACTION", help=f"{', '.join(ACTIONS)}, or a module with run(model, args)")
    action.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="-s, and what the action takes")
    action.set_defaults(command=_act)


def _act(options: argparse.Namespace) -> None:
    import_tensorflow()
    from prototrain.actions import load_action

    action = load_action(options.action)
    parser = argparse.ArgumentParser(
        prog=f"prototrain action {options.model} {options.action}", description=action.description
    )
    add_overrides(parser)
    action.add_arguments(parser)
    # What stands before the action's name is in the namespace already, and stays there.
    args = parser.parse_args(options.arguments, options)
    action.run(load(args, to_train=False), args)
