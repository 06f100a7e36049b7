"""Arguments that several commands take, and what they are turned into."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from prototrain.config import Config
from prototrain.config.json_form import read_object
from prototrain.config.schema import LENGTH_KEYS
from prototrain.config.values import texts_of_file
from prototrain.errors import ConfigError
from prototrain.experiment import Experiment
from prototrain.model import Model, load_model
from prototrain.system.quiet import import_tensorflow


def add_model(command: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Let a command take a model's module, and values for its config."""
    command.add_argument(
        "model", nargs="?" if optional else None, help="the model's module, such as models.simple, or MODULE:CLASS"
    )
    add_overrides(command)


def add_overrides(command: argparse.ArgumentParser) -> None:
    """Let a command take values for a config."""
    command.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="set config keys from a JSON or YAML file, nested or with dots; what -s sets comes after it",
    )
    command.add_argument(
        "-s",
        "--set",
        metavar="KEY=VALUE",
        type=_override,
        action="append",
        default=[],
        help="set a config key (VALUE is JSON, or such as False, None, .5 or 1e-3; else text; quotes force text)",
    )


def load(
    options: argparse.Namespace, configure: Callable[[Config], None] | None = None, *, to_train: bool = True
) -> Model:
    """The model that `add_model`'s arguments name, with the values they set, checked.

    Args:
        options: the arguments.
        configure: called with the model's config before they count.
        to_train: whether it is to be trained; its config must say for how long then, unless a program has begun the run
            and said so.
    """
    import_tensorflow()
    model = load_model(options.model)
    if configure is not None:
        configure(model.config)
    is_of_program = "model.num_steps" not in model.config
    values = given(options)
    model.config.override(values)
    if to_train and is_of_program:
        _add_length(model.config)
    model.config.validate(to_train=to_train)
    for key in (text.partition("=")[0].strip() for text in values):
        if (why := model.config.why_without_effect(key)) is not None:
            print(f"WARNING: {key} has no effect: {why}")
    return model


def given(options: argparse.Namespace) -> list[str]:
    """The values for the config that the command line gives, as KEY=VALUE in the order in which they count.

    Raises:
        ConfigError: the file of them cannot be read.
    """
    return [*([] if options.config is None else texts_of_file(options.config)), *options.set]


def _add_length(config: Config) -> None:
    """Let the length that a program gave to `train` count where the config has none."""
    if "trainer.experiment_name" not in config:
        return
    experiment = Experiment.from_config(config)
    experiment.fetch()
    if not (experiment.directory / "config.json").is_file():
        return
    experiment.check_inside()
    then = read_object(experiment.directory / "config.json")
    for key in LENGTH_KEYS:
        if key not in config and then.get(key) is not None:
            config[key] = then[key]
            print(f"{key} is {config[key]}, as in {experiment}")


def confirm(question: str) -> bool:
    """Ask at the terminal.

    Raises:
        ConfigError: there is no terminal.
    """
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} There is no terminal to answer at; add --yes if that is what you want")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _override(text: str) -> str:
    if not text.partition("=")[0].strip() or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE, such as model.batch_size=64")
    return text
