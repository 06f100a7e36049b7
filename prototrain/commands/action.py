"""`prototrain action`: run a function on a trained or new model."""

from __future__ import annotations

import argparse
from typing import Any, Final

from prototrain.commands.arguments import Parser, add_model, add_overrides, load, load_tensorflow
from prototrain.errors import ConfigError
from prototrain.model import import_user_module, require_module
from prototrain.system.terminal import did_you_mean

ACTIONS: Final = {
    "evaluate": "measure every scalar of a trained model, on a dataset or on files",
    "export": "write a trained model as a SavedModel or a Keras file",
    "find_batch_size": "measure the speed of growing batch sizes, and suggest one",
    "find_lr": "train with a growing learning rate for a short time, and suggest one",
    "inspect": "list a model's variables, tensors and callbacks",
    "predict": "write the outputs of a trained model, for a dataset or for files",
}
"""The built-in actions and their help texts, which `--help` shows without importing TensorFlow."""


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    width = max(map(len, ACTIONS))
    lines = "\n".join(f"  {name:{width}}  {text}" for name, text in ACTIONS.items())
    action = commands.add_parser(
        "action",
        help="evaluate, export or inspect a model, predict with it, or run a module over it",
        usage="prototrain action MODEL ACTION [-c FILE] [-s KEY=VALUE ...] [options of the action]",
        description=f"Run an action over a model:\n\n{lines}\n\nor a module that has run(model, args).",
        epilog="The options of an action: prototrain action MODEL ACTION --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(action)
    action.add_argument("action", metavar="ACTION", help="one of those above, or a module of your own")
    action.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="-s, and options of the action")
    action.set_defaults(command=_act)


def _act(options: argparse.Namespace) -> None:
    require_module(options.model)
    load_tensorflow()
    action = _module(options.action)
    name = f"prototrain action {options.model} {options.action}"
    parser = Parser(prog=name, usage=f"{name} [options]", description=action.__doc__)
    add_overrides(parser)
    if hasattr(action, "add_arguments"):
        action.add_arguments(parser)
    # The namespace already has the options before the name of the action, and keeps them.
    args = parser.parse_args(options.arguments, options)
    action.run(load(args, to_train=False), args)


def _module(name: str) -> Any:
    """Import the module of an action."""
    found = import_user_module(f"prototrain.actions.{name}" if name in ACTIONS else name, what="action")
    if found is None:
        known = f"take {', '.join(ACTIONS)} or a module with run(model, args){did_you_mean(name, ACTIONS)}"
        raise ConfigError(f"there is no action {name!r}: {known}")
    if not callable(getattr(found, "run", None)):
        raise ConfigError(f"action {name}: the module has no run(model, args)")
    return found
