"""The parser of the command line, and arguments that several commands share."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from prototrain.config import Config
from prototrain.config.schema import SCHEMA, is_strict
from prototrain.config.values import texts_of_file
from prototrain.errors import ConfigError
from prototrain.model import Model, load_model, require_module
from prototrain.system.signals import LeavingAtOnce
from prototrain.system.terminal import did_you_mean, import_tensorflow, is_terminal


class Parser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line and suggests the option that was probably meant."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)  # `--fres` must not delete an experiment

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments. Unlike the method of argparse, this rejects unknown arguments."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return found, []

    def error(self, message: str) -> NoReturn:
        """Print a message and exit with code 2."""
        self.exit(2, f"prototrain: error: {message} (see {self.prog} --help)\n")

    def _unknown(self, words: Sequence[str]) -> str:
        option = words[0].partition("=")[0]
        if not option.startswith("-"):
            return f"unexpected argument {words[0]!r}"
        known = [name for name in self._option_string_actions if name.startswith("--")]  # argparse has no public way
        keys = "; config keys are set with -s KEY=VALUE" if "--set" in known else ""
        return f"there is no option {option}{did_you_mean(option, known) or keys}"


def option(command: Any, spec: str, help: str, **more: Any) -> None:
    """Declare an option with a value, such as "-o --output FILE", or a flag, such as "--json"."""
    *flags, last = spec.split()
    if last.startswith("-"):
        command.add_argument(*flags, last, help=help, **{"action": "store_true", **more})
    else:
        command.add_argument(*flags, metavar=last, help=help, **more)


def add_model(command: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Declare the arguments for the module of a model, and for config values."""
    command.add_argument(
        "model", nargs="?" if optional else None, help="the model's module, such as models.simple, or MODULE:CLASS"
    )
    add_overrides(command)


def add_overrides(command: argparse.ArgumentParser) -> None:
    """Declare the options for config values."""
    files = "set config keys from a JSON or YAML file; what -s sets comes after all files"
    option(command, "-c --config FILE", files, action="append", default=[])
    setting = "set a config key, any number of times (VALUE is JSON, or such as False, .5 or 1e-3; else text)"
    option(command, "-s --set KEY=VALUE", setting, type=override, action="append", default=[])


def number(kind: type[int] | type[float], low: float, below: float = math.inf) -> Callable[[str], Any]:
    """Return a function for argparse that parses a number of at least `low` and less than `below`."""

    def parse(text: str) -> Any:
        try:
            found = kind(text)
        except ValueError:
            found = math.nan
        if not low <= found < below:
            what = f"a {'whole ' * (kind is int)}number of at least {low:g}"
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}{f' and below {below:g}' * (below < math.inf)}")
        return found

    return parse


whole = number(int, 1)


def load(
    options: argparse.Namespace, configure: Callable[[Config], None] | None = None, *, to_train: bool = True
) -> Model:
    """Load a model, apply the config values of the command line, and validate the config.

    Args:
        options: the parsed arguments of `add_model`.
        configure: called with the model's config before the values are applied.
        to_train: whether the config must set the length of a run.
    """
    load_tensorflow()
    import keras

    values = given(options)
    keras.utils.set_random_seed(early_value(values, "trainer.random_seed"))  # the module may create variables
    model = load_model(options.model)
    if configure is not None:
        configure(model.config)
    model.config.override(values)
    model.config.validate(to_train=to_train)
    return model


def check_early(options: argparse.Namespace) -> None:
    """Check the name of the model and prototrain's own keys before the slow import of TensorFlow."""
    require_module(options.model)
    texts = {key_of(text): text for text in given(options)}
    is_ours = {key: key in SCHEMA or is_strict(key) for key in texts}
    # Function references are skipped, because their module may be the model, which is not imported yet.
    Config().override([text for key, text in texts.items() if is_ours[key] and ":" not in text])


def key_of(text: str) -> str:
    """Return the key of a KEY=VALUE text."""
    return text.partition("=")[0].strip()


def load_tensorflow() -> None:
    """Import TensorFlow, and print a message first."""
    if "tensorflow" not in sys.modules:
        print("loading TensorFlow ...", file=sys.stderr, flush=True)
    with LeavingAtOnce():  # Python's exception would be raised, or get lost, within C++ code
        import_tensorflow()
        import keras  # noqa: F401


def given(options: argparse.Namespace) -> list[str]:
    """Return the config values of the command line as KEY=VALUE texts, in the order in which they apply."""
    return [*(text for path in options.config for text in texts_of_file(path)), *options.set]


def early_value(texts: Sequence[str], key: str) -> Any:
    """Return the given or default value of one of prototrain's own keys, before the model's config is read."""
    config = Config()
    config.override([text for text in texts if key_of(text) == key])
    return config[key]


def confirm(question: str) -> bool:
    """Ask a question at the terminal; returns whether the answer is yes."""
    if not is_terminal(sys.stdin):
        raise ConfigError(f"{question} There is no terminal to answer at; add --yes if that is what you want")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def override(text: str) -> str:
    """Return a KEY=VALUE text, for argparse."""
    if not key_of(text) or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE, such as model.batch_size=64")
    return text
