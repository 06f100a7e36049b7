"""The parser of the command line, and arguments that several commands take."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from prototrain.config import Config
from prototrain.config.json_form import read_object
from prototrain.config.schema import LENGTH_KEYS, SCHEMA
from prototrain.config.values import texts_of_file
from prototrain.errors import ConfigError
from prototrain.experiment import Experiment
from prototrain.model import Model, load_model
from prototrain.system.quiet import import_tensorflow

_KEYS_OF_OPTIONS: Final = {
    "--epochs": "model.num_epochs",
    "--learning-rate": "model.lr_schedule.constant.value",
    "--lr": "model.lr_schedule.constant.value",
    "--optimizer": "model.optimizer.method",
    "--seed": "trainer.random_seed",
    "--steps": "model.num_steps",
}
"""Options that people try for what is a config key."""


class Parser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line, with the option that was probably meant."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; unlike argparse's own, it accepts no unknown ones."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return found, []

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"prototrain: error: {message} (see {self.prog} --help)\n")

    def _unknown(self, words: Sequence[str]) -> str:
        option = words[0].partition("=")[0]
        if not option.startswith("-"):
            return f"unexpected argument {words[0]!r}"
        known = [name for name in self._option_string_actions if name.startswith("--")]  # argparse has no public way
        keys: dict[str, str] = {}
        if "--set" in known:
            named = [key for key in SCHEMA if key.count(".") == 1]
            keys = {f"--{key.partition('.')[2].replace('_', '-')}": key for key in named} | _KEYS_OF_OPTIONS
        near = difflib.get_close_matches(option.lower(), [*known, *keys], n=1)
        if not near:
            return f"there is no option {option}"
        meant = near[0] if near[0] in known else f"-s {keys[near[0]]}=VALUE"
        return f"there is no option {option}; did you mean {meant}?"


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
    is_of_program = not {"model.num_steps", "model.num_epochs"} & model.config.keys()
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
