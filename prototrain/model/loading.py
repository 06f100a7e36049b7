"""The model protocol, and loading of models by name."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from prototrain.config import Config
from prototrain.errors import ConfigError, ModelError, PrototrainError
from prototrain.experiment import source_of
from prototrain.system.tracebacks import format_error

if TYPE_CHECKING:
    import tensorflow as tf

    from prototrain.callbacks.base import Callback


class ModelProtocol(Protocol):
    """An object with a config, datasets and a build function."""

    @property
    def config(self) -> Config: ...

    def datasets(self) -> dict[str, tf.data.Dataset]:
        """Return datasets by name: "trn", and optionally "vld" and "tst"; each element is a dict of batched tensors.

        It may take an argument, the worker that reads the data; see `prototrain.data.source.Share`.
        """

    def build(self, inputs: dict[str, Any], train_phase: bool) -> Mapping[str, Any]:
        """Return named tensors for one tower's batch, including a scalar "loss" if `inputs` has the labels."""


class ModelDict(dict[str, Any]):
    """A dict of tensors with attribute access, in the order they were set; `last` is the tensor set last.

    Examples:
        >>> net = ModelDict()
        >>> net.examples = 1
        >>> net.logits = net.last + 1
        >>> net["logits"], list(net)
        (2, ['examples', 'logits'])
    """

    def __setitem__(self, name: str, value: Any) -> None:
        self.pop(name, None)  # setting a name again makes it the last one
        super().__setitem__(name, value)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self) or "nothing yet"
            raise AttributeError(f"the model's mapping has no {name!r}; it has: {known}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "last" or hasattr(dict, name):
            raise AttributeError(f"{name!r} is taken; write net[{name!r}] = ... instead")
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    @property
    def last(self) -> Any:
        """The value that was set last."""
        return self[next(reversed(self))] if self else self.__getattr__("last")


@dataclass(frozen=True)
class Model:
    """A model package loaded by `load_model`.

    Attributes:
        name: the name it was loaded by.
        config: the config, shared with the package.
        datasets: function that returns the datasets.
        build: function that builds one tower.
        source: directory of the package or file of the module, for the snapshot.
        callbacks: optional function that returns additional callbacks.
        serving: optional function that makes a batch from new data.
    """

    name: str
    config: Config
    datasets: Callable[[], dict[str, tf.data.Dataset]]
    build: Callable[[dict[str, Any], bool], Mapping[str, Any]]
    source: Path | None = None
    callbacks: Callable[[], Iterable[Callback]] | None = None
    serving: Callable[[dict[str, Any]], dict[str, Any]] | None = None


_HOMES = {part: part for part in ("config", "datasets", "callbacks")} | {"build": "definition", "serving": "datasets"}
"""The module of a package that may define each part of a model."""

_REQUIRED = ("config", "datasets", "build")


def check_model(model: Any) -> None:
    """Raise a ModelError if an object is a name, a class, or no model."""
    if isinstance(model, str):
        raise ModelError(f"a trainer takes the model itself: load_model({model!r})")
    missing = [part for part in _REQUIRED if not hasattr(model, part)]
    if isinstance(model, type):
        raise ModelError(f"the model is the class {model.__name__}; write it with parentheses, {model.__name__}()")
    if missing:
        raise ModelError(f"a {type(model).__name__} is not a model: it has no {' and no '.join(missing)}")
    try:
        inspect.signature(model.build).bind({}, True)
    except TypeError as error:
        raise ModelError(f"build() is called as build(inputs, train_phase): {error}") from error


def load_model(name: str) -> Model:
    """Import a model package from the current directory or from an installed package.

    The package defines `config`, `datasets` and `build` directly, or in its modules ``config.py``, ``datasets.py`` and
    ``definition.py``. Two parts are optional: `callbacks` (in ``callbacks.py``) returns callbacks to add to those of
    the config, and `serving(inputs)` (in ``datasets.py``) makes a batch from new data for `predict` and `evaluate`.

    A model may also be a class with these parts as attributes and methods. Its name is ``module:Class``, and it is
    constructed without arguments.

    Args:
        name: a dotted module name such as ``models.simple``, or ``module:Class``.

    Returns:
        the model; its config is the same object as the package's if that is a `Config`.

    Raises:
        ModelError: there is no such module or class, a part is missing or has the wrong type, or importing the module
            fails (its traceback is printed to stderr).
        ConfigError: the config is invalid.
    """
    module_name, colon, attribute = name.partition(":")
    module = import_user_module(module_name, what="model")
    if module is None:
        raise _no_model(module_name)
    home = _made(module, attribute, name) if colon else module
    parts: dict[str, Any] = {part: _find_part(home, part) for part in _HOMES}
    if missing := [part for part in _REQUIRED if parts[part] is None]:
        # builtin modules have no file
        where = attribute if colon else Path(getattr(module, "__file__", None) or name).name
        if hasattr(home, "__path__"):
            where += f" or in its {' and '.join(f'{_HOMES[part]}.py' for part in missing)}"
        raise ModelError(f"model {name} has no {' and no '.join(missing)}; define it in {where}")
    for part, value in parts.items():
        is_right = isinstance(value, Mapping) if part == "config" else value is None or callable(value)
        if not is_right:
            kind = "a Config or a dict" if part == "config" else "a function"
            raise ModelError(f"model {name}: {part} must be {kind}, not {type(value).__name__}")
    try:
        parts["config"] = config = parts["config"] if isinstance(parts["config"], Config) else Config(parts["config"])
    except ConfigError as error:
        raise ConfigError(f"model {name}: {error}") from error
    config.keep_defaults()
    return Model(name, source=source_of(module), **parts)


def require_module(name: str) -> None:
    """Raise a ModelError if there is no module of a model; does not import it."""
    module = name.partition(":")[0]
    _prepare_import(module)
    try:
        found = importlib.util.find_spec(module)
    except Exception:  # a parent package fails, or the name is invalid: `load_model` explains
        return
    if found is None:
        raise _no_model(module)


def _prepare_import(name: str) -> None:
    """Check the name of a module, and add the current directory to `sys.path`."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ModelError(f"{name!r} is not a module name; write it with dots, such as models.simple")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def import_user_module(name: str, *, what: str) -> ModuleType | None:
    """Import a user's module from the current directory or an installed package; returns None if it does not exist.

    Raises:
        ModelError: the name is invalid, or importing the module fails (its traceback is printed to stderr).
    """
    _prepare_import(name)
    try:
        return importlib.import_module(name)
    except PrototrainError as error:
        raise ModelError(f"{what} {name}: {error}") from error
    except (Exception, SystemExit) as error:  # raised by the module's code
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            return None
        sys.stderr.write(format_error(error))
        if missing is not None:
            raise ModelError(f"{what} {name} needs the module {missing!r}, which is not installed") from error
        raise ModelError(f"importing the {what} {name} failed: {type(error).__name__}: {error}") from error


def _no_model(name: str) -> ModelError:
    hint = " (leave out .py)" if name.endswith(".py") else ""
    return ModelError(f"there is no model {name}{hint}: no such module in {Path.cwd()} or among the installed packages")


def _made(module: ModuleType, attribute: str, name: str) -> Any:
    """Return the model that a module defines as an object, or as a class or function that makes it."""
    thing = getattr(module, attribute, None)
    if thing is None:
        raise ModelError(f"there is no model {name}: {module.__name__} has no {attribute or 'name behind the colon'}")
    return thing() if isinstance(thing, type) or (callable(thing) and not hasattr(thing, "build")) else thing


def _find_part(home: Any, part: str) -> Any:
    """Return a part of a model from an object or module, or from the part's module in a package, or None."""
    value = getattr(home, part, None)
    if hasattr(home, "__path__") and (value is None or isinstance(value, ModuleType)):
        value = getattr(import_user_module(f"{home.__name__}.{_HOMES[part]}", what="model"), part, None)
    return None if isinstance(value, ModuleType) else value
