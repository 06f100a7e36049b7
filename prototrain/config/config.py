"""`Config`: an ordered dictionary of dotted keys that checks its values, and that can be saved."""

from __future__ import annotations

import json
import re
from collections import UserDict
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from prototrain.config.schema import (
    LOCATION_KEYS,
    NEEDS,
    SCHEMA,
    STEP_KEYS,
    UNSET,
    checked,
    is_namespace,
    is_strict,
    of_same_type,
    short_repr,
)
from prototrain.config.values import FUNCTIONS_KEY, FileText, decode, encode, is_plain, read_object, read_value
from prototrain.errors import ConfigError
from prototrain.system.files import write_atomic
from prototrain.system.terminal import did_you_mean

_LENGTHS: Final = {"model.num_steps": "model.num_epochs", "model.num_epochs": "model.num_steps"}
UNSET_TEXT: Final = "(unset)"
"""Stands for a missing value in a comparison of configs."""
_KEY: Final = re.compile(r"[\w-]+(\.[\w-]+)*")


class ConfigKeyError(ConfigError, KeyError):
    """An error for a key that is unknown or not set. Also a KeyError, because a Config is a mapping."""

    __str__ = Exception.__str__  # that of KeyError shows the repr of the message


class Config(UserDict[str, Any]):
    """An ordered dictionary of dotted keys, checked against the schema at every assignment.

    `config[key]` returns the value that was set, else the schema's default. Iteration, `len`, `in` and `==` consider
    only the keys that were set. Keys outside of prototrain's own namespaces belong to the model and hold any value.

    Examples:
        >>> config = Config({"model.batch_size": 32})
        >>> config["model.width"] = 128
        >>> config["trainer.print_interval"], list(config)
        (100, ['model.batch_size', 'model.width'])

    Attributes:
        batches_per_epoch: the steps in an epoch, which a trainer sets from the data; None before that.
        planned_steps: the length of the run, which `train` sets while it runs; None otherwise.

    Raises:
        ConfigError: a key is unknown in its namespace, or a value is wrong.
    """

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        self.data: dict[str, Any] = {}
        self._defaults: dict[str, Any] | None = None
        self._read: set[str] = set()
        self.batches_per_epoch: int | None = None
        self.planned_steps: int | None = None
        self.update(values)

    def __getitem__(self, key: str) -> Any:
        value = self.get(key, UNSET)
        if value is not UNSET:
            return value
        if key in SCHEMA:
            raise ConfigKeyError(f"{key} is not set; expected {SCHEMA[key].expected}")
        raise ConfigKeyError(f"unknown key {key!r}{did_you_mean(str(key), [*SCHEMA, *self])}")

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise ConfigError(f"{short_repr(key)} is not a key; expected dotted names such as model.batch_size")
        if key == FUNCTIONS_KEY:
            raise ConfigError(f"{key} is reserved for the saved form of a configuration")
        if isinstance(value, Mapping) and value and is_namespace(key):
            for name, inside in value.items():  # nested, as in a YAML file
                self[f"{key}.{name}"] = inside
            return
        if key not in SCHEMA and is_strict(key):
            raise ConfigKeyError(f"unknown key {key!r}{did_you_mean(key, SCHEMA)}")
        value = checked(key, value)
        if key in _LENGTHS and value is not None:  # the last one that is set determines the length of the run
            self.data.pop(_LENGTHS[key], None)
        self.data[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value that was set, else the schema's default, else `default`."""
        self._read.add(key)
        if key in self.data:
            return self.data[key]
        schema_default = SCHEMA[key].default if key in SCHEMA else UNSET
        return default if schema_default is UNSET else schema_default

    # The mixin's versions use `self[key]`, which would treat a schema default like a value that was set.
    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key that was set explicitly and return its value, or `default` if it was not set."""
        return self.data.pop(key, *default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Set `key` to `default` unless it was set explicitly, and return the value."""
        if key not in self.data:
            self[key] = default
        return self.data[key]

    def copy(self) -> Config:
        """Return a shallow copy."""
        new = Config()
        new.data = dict(self.data)
        new._defaults, new.batches_per_epoch = self._defaults, self.batches_per_epoch
        return new

    __copy__ = copy

    def total_steps(self) -> int:
        """Return the length of the run in steps, from `train`, ``model.num_steps`` or ``model.num_epochs``.

        Raises:
            ConfigError: neither is set, or the length of an epoch is not known.
        """
        if self.planned_steps is not None:
            return self.planned_steps
        epochs = self.get("model.num_epochs")
        if epochs is None:
            return int(self["model.num_steps"])
        steps = self.batches_per_epoch or self["trainer.steps_per_epoch"]
        if steps is None:
            text = "model.num_epochs: the length of an epoch is not known"
            raise ConfigError(f"{text}; set trainer.steps_per_epoch, or model.num_steps instead")
        return int(epochs * steps)

    def validate(self, *, to_train: bool = True) -> None:
        """Check that the required keys are set. The length of a run is required only with `to_train`.

        Raises:
            ConfigError: a key is missing, or the bounds of ``model.clip_gradients`` exclude each other.
        """
        has_length = not to_train or self.get("model.num_epochs") is not None
        for key, spec in SCHEMA.items():
            if spec.required and key not in self and not (key == "model.num_steps" and has_length):
                raise ConfigError(f"{key} is required; expected {spec.expected}")
        minval, maxval = self["model.clip_gradients.minval"], self["model.clip_gradients.maxval"]
        if self["model.clip_gradients"] and minval >= maxval:
            raise ConfigError(f"model.clip_gradients.minval: expected less than .maxval ({maxval}), got {minval}")

    def override(self, overrides: str | Iterable[str]) -> None:
        """Apply `KEY=VALUE` texts, such as those of the command line's `-s`. If one is wrong, none is applied.

        `prototrain.config.values.read_value` parses each VALUE.

        Raises:
            ConfigError: a text is not KEY=VALUE, the key is neither in the schema nor set, or the value is wrong. The
                value of a model's own key must have the type of the current value; a key of text takes numbers as text.
        """
        trial = self.copy()
        texts = [overrides] if isinstance(overrides, str) else list(overrides)
        for index, text in enumerate(texts, start=1):
            try:
                texts[index:index] = self._override(trial, text)
            except ConfigError as error:
                where = f"{text.path}: " if isinstance(text, FileText) else ""
                raise type(error)(f"{where}{error}") from error.__cause__
        self.data = trial.data

    def _override(self, trial: Config, text: str) -> list[str]:
        """Apply a text to the copy `trial`; returns the texts of the values that it nests."""
        key, equals, written = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"{short_repr(text)} is not an override; expected KEY=VALUE")
        value = read_value(written)
        is_text = SCHEMA[key].type == "str" if key in SCHEMA else isinstance(self.data.get(key), str)
        # The number of a file has lost its form, such as 1.10.
        numbers = int if isinstance(text, FileText) else int | float
        if is_text and isinstance(value, numbers) and not isinstance(value, bool):
            value = written.strip()
        if key in SCHEMA:
            trial[key] = value
        elif key in self:
            default = self[key] if self._defaults is None else self._defaults.get(key, self[key])
            is_open = self[key] is None or (value is None and default is None)
            trial[key] = value if is_open else of_same_type(key, value, self[key])
        elif isinstance(value, dict) and value and any(known.startswith(f"{key}.") for known in self):
            return [f"{key}.{name}={json.dumps(inside)}" for name, inside in value.items()]
        else:
            raise ConfigKeyError(f"unknown key {key!r}{did_you_mean(key, [*SCHEMA, *self])}")
        return []

    def why_without_effect(self, key: str) -> str | None:
        """Return why a key has no effect, such as an argument of another optimizer; None if it has an effect."""
        effective = {name: self.data.get(name, SCHEMA[name].default) for name in NEEDS.get(key, ())}
        if effective and not any(effective.values()):
            return f"{' and '.join(effective)} {'is' if len(effective) == 1 else 'are'} not set"
        return self.why_not_chosen(key)

    def why_not_chosen(self, key: str) -> str | None:
        """Return why a key is an argument of an optimizer or schedule that is not chosen; None for any other key."""
        owner, _, method = key.rpartition(".")[0].rpartition(".")
        if owner not in ("model.optimizer", "model.lr_schedule"):
            return None
        chosen = self.get(f"{owner}.method")
        shown = chosen if isinstance(chosen, str | None) else type(chosen).__name__
        return None if chosen == method else f"{owner}.method is {shown!r}"

    def to_plain(self) -> dict[str, Any]:
        """Return the set keys as plain JSON data, in order, as `to_json` writes them."""
        plain = {key: encode(value) for key, value in self.data.items()}
        own = [key for key, value in self.data.items() if key not in SCHEMA and not is_plain(value)]
        return {**plain, FUNCTIONS_KEY: own} if own else plain

    def to_json(self) -> str:
        """Return the set keys as indented JSON in their order, ending in a newline.

        See `prototrain.config.values.encode` for values that JSON cannot hold.
        """
        return json.dumps(self.to_plain(), indent=2) + "\n"

    def facts(self) -> dict[str, Any]:
        """Return the values that describe training, as JSON data: without location, length and initial weights."""
        values: dict[str, Any] = json.loads(self.to_json())
        method = values.get("model.optimizer.method")
        if isinstance(method, dict) and isinstance(method.get("config"), dict):
            # Keras numbers names per process, and a schedule changes the learning rate.
            kept = {key: value for key, value in method["config"].items() if key not in ("name", "learning_rate")}
            values["model.optimizer.method"] = {**method, "config": kept}
        left_out = {*LOCATION_KEYS, FUNCTIONS_KEY, *_LENGTHS, "model.weights_load_path"}
        return {key: value for key, value in values.items() if key not in left_out and not key.startswith("actions.")}

    def to_text(self) -> str:
        """Return all effective values, including defaults, as aligned `key = value` lines grouped by namespace."""
        plain = self.to_plain()
        groups: dict[str, list[tuple[str, str]]] = {}
        for key in dict.fromkeys([*SCHEMA, *self]):
            if key not in self and (SCHEMA[key].default is UNSET or self.why_not_chosen(key) is not None):
                continue
            value = json.dumps(plain[key] if key in self else SCHEMA[key].default, ensure_ascii=False)
            group = groups.setdefault(".".join(key.split(".")[:-1][:2]), [])
            group.append((key, value if key in self else f"{value}  # default"))
        blocks = []
        for lines in groups.values():
            width = max(len(key) for key, _ in lines)
            blocks.append("".join(f"{key:<{width}} = {value}\n" for key, value in lines))
        # A lone surrogate is valid in Python and JSON strings, but not in UTF-8.
        return "\n".join(blocks).encode("utf-8", "backslashreplace").decode("utf-8")

    def save(self, directory: str | Path) -> None:
        """Write `config.json` for programs, and `config.txt` for people, to a directory that exists."""
        write_atomic(Path(directory) / "config.json", self.to_json())
        write_atomic(Path(directory) / "config.txt", self.to_text())

    def restore(self, path: str | Path) -> None:
        """Replace the values with those of a `config.json` that was saved from the config of the same model.

        A value whose saved form has not changed keeps its object, such as a lambda, which cannot be looked up by name.
        The modules of functions that are values of schema keys are imported.

        Raises:
            ConfigError: the file is missing, malformed or wrong, or has a value that cannot be looked up by name.
        """
        path = Path(path)
        plain, mine = read_object(path), self.to_plain()
        if not isinstance(marks := plain.pop(FUNCTIONS_KEY, []), list):
            raise ConfigError(f"{path}: {FUNCTIONS_KEY}: expected list[str], got {short_repr(marks)}")
        read = type(self)()
        for key, value in plain.items():
            is_marked = key in marks
            is_same = is_marked == (key in mine.get(FUNCTIONS_KEY, ())) and _text(value) == _text(mine.get(key))
            try:
                if key in self and is_same:
                    read.data[key] = self.data[key]
                else:
                    read[key] = decode(key, value) if is_marked else value
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from error
        self.data = read.data

    def mark_read(self, group: str, *, is_read: bool = True) -> None:
        """Record that the keys of a group in `STEP_KEYS` were read, or were not; see `without_effect`."""
        keys = {key for key in SCHEMA if _group_of_step(key) == group}
        self._read -= keys
        if is_read:
            self._read |= {key for key in keys if self.why_without_effect(key) is None}

    def without_effect(self) -> dict[str, str]:
        """Return the keys that differ from the default but were not read, each with the reason.

        The defaults are the model's own if it was loaded by name, else those of the schema, without the model's own
        keys; for the keys of a step, always those of the schema. Required keys are left out, because scripts must set
        them, and so is the place of experiments.
        """
        changed = {key for key, value in self.data.items() if key in SCHEMA and value != SCHEMA[key].default}
        if self._defaults is not None:
            of_model = {key for key, *_ in self.changes() or ()}
            changed = {key for key in self.data if key in of_model or (key in changed and _group_of_step(key))}
        left_out = {*LOCATION_KEYS, *(key for key, spec in SCHEMA.items() if spec.required)}
        found = {}
        for key in self.data:
            if key in self._read or key in left_out or key.startswith("actions."):
                continue
            # A key of the model's own may look like one of prototrain's.
            near = [] if key in SCHEMA else get_close_matches(key, SCHEMA, n=1, cutoff=0.9)
            if key in changed or near:
                meant = f"; did you mean {near[0]!r}?" if near else ""
                why = self.why_without_effect(key) or STEP_KEYS.get(_group_of_step(key) or "")
                found[key] = why or f"nothing in this run reads it{meant}"
        return found

    def keep_defaults(self) -> None:
        """Store the current values as the model's own defaults, at the first call only."""
        if self._defaults is None:
            self._defaults = self.to_plain()

    def changes(self) -> list[tuple[str, Any, Any]] | None:
        """Return (key, value, default) as plain JSON data for each value that differs from the model's own default.

        Returns None if the defaults are not known; `load_model` sets them.
        """
        if self._defaults is None:
            return None
        return [(key, value, default) for key, (value, default) in differing([self, self._defaults])]


def differing(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Return (key, one value per config) as plain JSON data for each key whose effective values differ.

    The value is "(unset)" where it is missing. Each config is a `Config`, or the plain data of a `config.json`.
    """
    sides = [side.to_plain() if isinstance(side, Config) else dict(side) for side in configs]
    found = []
    for key in dict.fromkeys(key for side in sides for key in side if key != FUNCTIONS_KEY):
        default = SCHEMA[key].default if key in SCHEMA else UNSET
        values = [side.get(key, UNSET_TEXT if default is UNSET else default) for side in sides]
        if len(set(map(_text, values))) > 1:
            found.append((key, values))
    return found


def _group_of_step(key: str) -> str | None:
    return next((group for group in STEP_KEYS if f"{key}.".startswith(f"{group}.")), None)


def _text(value: Any) -> str:
    # As text, because 1 == True == 1.0 in Python.
    return json.dumps(value, sort_keys=True)
