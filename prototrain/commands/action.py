"""`prototrain action`: a function over a model beside its training."""

from __future__ import annotations

import argparse
from typing import Any, Final

from prototrain.commands.arguments import Parser, add_model, add_overrides, load
from prototrain.system.quiet import import_tensorflow

ACTIONS: Final = {
    "evaluate": "measure every scalar of a trained model, on a dataset or on files",
    "export": "write a trained model as a SavedModel or a Keras file",
    "find_batch_size": "find the largest batch that fits into memory, and the fastest",
    "find_lr": "train with a growing learning rate for a short time, and suggest one",
    "inspect": "list the variables of a checkpoint, with shapes and values",
    "predict": "write the outputs of a trained model, for a dataset or for files",
}
"""The actions of prototrain, and what each does. Known here without TensorFlow, for `--help`."""


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    action = commands.add_parser(
        "action",
        help="evaluate, export or inspect a model, predict with it, or run a module over it",
        usage="prototrain action MODEL ACTION [-c FILE] [-s KEY=VALUE ...] [options of the action]",
        description=_description(),
        epilog="The options of an action: prototrain action MODEL ACTION --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(action)
    action.add_argument("action", metavar="ACTION", help="one of those above, or a module of your own")
    action.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="-s, and options of the action")
    action.set_defaults(command=_act)


def _description() -> str:
    width = max(map(len, ACTIONS))
    lines = [f"  {name:{width}}  {text}" for name, text in ACTIONS.items()]
    return "\n".join(["Run an action over a model:", "", *lines, "", "or your own module that has run(model, args)."])


def _act(options: argparse.Namespace) -> None:
    import_tensorflow()
    from prototrain.actions import load_action

    action = load_action(options.action)
    name = f"prototrain action {options.model} {options.action}"
    parser = Parser(prog=name, usage=f"{name} [options]", description=action.description)
    add_overrides(parser)
    action.add_arguments(parser)
    # What stands before the action's name is in the namespace already, and stays there.
    args = parser.parse_args(options.arguments, options)
    action.run(load(args, to_train=False), args)
