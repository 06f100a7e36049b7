"""The schema of the keys that prototrain reads: a table of types, defaults and bounds, and the checks that use it.

Nothing here imports TensorFlow, so that the command line can check a config before that slow import.
"""

from __future__ import annotations

import numbers
import operator
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from prototrain.errors import ConfigError
from prototrain.system.terminal import did_you_mean

UNSET: Final = object()
"""Stands for a missing value, such as the default of a key that has none."""

REFERENCE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
"""The form of a function's name in a config: `package.module:name`."""

STRICT_NAMESPACES: Final = (
    "trainer",
    "model.optimizer",
    "model.lr_schedule",
    "model.weight_decay",
    "model.trainable_variables",
    "model.clip_gradients",
)

LOCATION_KEYS: Final = ("trainer.experiment_base_dir", "trainer.experiment_name")
"""The keys for the location of a run, which do not affect training."""

_EPOCHS: Final = re.compile(r"([1-9]\d{0,17}) epochs?")


@runtime_checkable
class HasConfig(Protocol):
    """An object that describes itself, such as a Keras optimizer, layer or schedule."""

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that create an equal object."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """The values that one key accepts.

    Attributes:
        type: "bool", "int", "float", "str", "function", "optimizer", "interval" (steps or "N epochs"), or "list[...]".
        default: the value of a key that is not set. If it is None, the key also accepts None.
        required: whether `Config.validate` requires an explicit value.
        choices: the only accepted texts of a "str", if there are any; for other types, texts that are also accepted.
        minimum, maximum, above, below: inclusive and exclusive bounds of a number, or of each element of a list.
        complaint: returns what is wrong with a value of the right type, or None.
    """

    type: str
    default: Any = UNSET
    required: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    complaint: Callable[[Any], str | None] | None = None

    @property
    def _bounds(self) -> list[tuple[str, Callable[[Any, Any], bool], float]]:
        lower = (">=", operator.ge, self.minimum), (">", operator.gt, self.above)
        upper = ("<=", operator.le, self.maximum), ("<", operator.lt, self.below)
        return [(sign, holds, bound) for sign, holds, bound in (*lower, *upper) if bound is not None]

    @property
    def expected(self) -> str:
        """The accepted values as text, for messages."""
        numbers = {"int": self.choices, "interval": ('"N epochs"', *self.choices)}.get(self.type, ())
        bounds = " and ".join(f"{sign} {bound}" for sign, _, bound in self._bounds)
        words = {
            "interval": "int",
            "bool": " or ".join(("bool", *self.choices)),
            "str": " or ".join(self.choices) or "str",
            "function": 'function or "module:name"',
            "optimizer": f'{", ".join(self.choices)}, a Keras optimizer, a factory, or "module:name" of a factory',
        }.get(self.type, self.type)
        found = " or ".join([" ".join(filter(None, (words, bounds))), *numbers])
        return found + (" or None" if self.default is None else "")

    def in_bounds(self, number: float) -> bool:
        """Return whether a number is within all bounds, and an integer in 64 bits."""
        is_large = "int" in self.type and abs(number) >= 2**63
        return not is_large and all(holds(number, bound) for _, holds, bound in self._bounds)


_ANY: Final = Key(type="str")


def _complaint_of_directory(path: str) -> str | None:
    return None if path else 'is empty; the working directory is "."'


def _complaint_of_name(name: str) -> str | None:
    if name and not re.search(r"[/\\\0]|\.\.", name) and not name.startswith("."):
        return None
    if not name:
        return "is empty; give a name"
    return 'would leave the base directory; use a plain name without "/", "\\", NUL, ".." or a leading "."'


def _complaint_of_regex(pattern: str | None) -> str | None:
    try:
        re.compile(pattern or "")
    except (re.error, RecursionError, OverflowError) as error:
        return f"is not a regular expression: {error}"
    return None


_REGEX: Final = Key(type="str", default=None, complaint=_complaint_of_regex)
_FUNCTION: Final = Key(type="function", default=None)

SCHEDULES: Final = ("step", "constant", "exp", "custom", "cosine", "polynomial", "linear")
"""The methods of `model.lr_schedule`."""

_BETAS: Final = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
_ADAFACTOR = {"beta_2_decay": -0.8, "epsilon_1": 1e-30, "epsilon_2": 1e-3, "clip_threshold": 1.0, "relative_step": True}

KERAS_OPTIMIZERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "adadelta": ("Adadelta", {"rho": 0.95, "epsilon": 1e-7, "weight_decay": None}),
    "adafactor": ("Adafactor", {**_ADAFACTOR, "weight_decay": None}),
    "adagrad": ("Adagrad", {"initial_accumulator_value": 0.1, "epsilon": 1e-7, "weight_decay": None}),
    "adamax": ("Adamax", {**_BETAS, "weight_decay": None}),
    "adamw": ("AdamW", {"weight_decay": 0.004, **_BETAS, "amsgrad": False}),
    "ftrl": (
        "Ftrl",
        {
            "learning_rate_power": -0.5,
            "initial_accumulator_value": 0.1,
            "l1_regularization_strength": 0.0,
            "l2_regularization_strength": 0.0,
            "l2_shrinkage_regularization_strength": 0.0,
            "beta": 0.0,
            "weight_decay": None,
        },
    ),
    "lamb": ("Lamb", {**_BETAS, "weight_decay": None}),
    "lion": ("Lion", {"beta_1": 0.9, "beta_2": 0.99, "weight_decay": None}),
    "nadam": ("Nadam", {**_BETAS, "weight_decay": None}),
}
"""The Keras optimizers by method: the class in `keras.optimizers`, and its arguments with the defaults of Keras."""

SCHEMA: Final[dict[str, Key]] = {
    "trainer.experiment_base_dir": Key(type="str", default="experiments", complaint=_complaint_of_directory),
    "trainer.experiment_name": Key(type="str", required=True, complaint=_complaint_of_name),
    "trainer.validation_step_interval": Key(type="interval", default=100, minimum=1),
    "trainer.summary_save_interval": Key(type="interval", default=50, minimum=1),
    "trainer.print_interval": Key(type="interval", default=100, minimum=1),
    "trainer.progress_scalars": Key(type="list[str]", default=["loss"]),
    "trainer.checkpoint_save_interval": Key(type="interval", default=1000, minimum=1, choices=("auto",)),
    "trainer.failures_per_day": Key(type="float", default=0.03, above=0),
    "trainer.validation_batches": Key(type="int", default=1, minimum=0),
    "trainer.rehearse_validation": Key(type="bool", default=True),
    "trainer.max_checkpoints_to_keep": Key(type="int", default=5, minimum=1),
    "trainer.random_seed": Key(type="int", default=1337, minimum=0, maximum=2**32 - 1),
    "trainer.steps_per_epoch": Key(type="int", default=None, minimum=1),
    "trainer.keep_best": Key(type="str", default=None),
    "trainer.keep_best.mode": Key(type="str", default="min", choices=("min", "max")),
    "trainer.early_stopping": Key(type="str", default=None),
    "trainer.early_stopping.mode": Key(type="str", default="min", choices=("min", "max")),
    "trainer.early_stopping.patience": Key(type="int", default=10, minimum=1),
    "trainer.early_stopping.min_delta": Key(type="float", default=0.0, minimum=0),
    "trainer.early_stopping.restore_best": Key(type="bool", default=False),
    "trainer.data_position": Key(type="str", default="auto", choices=("auto", "iterator", "replay", "restart")),
    "trainer.limit_batches": Key(type="int", default=None, minimum=1),
    "trainer.overfit_batches": Key(type="int", default=None, minimum=1),
    "trainer.cluster_timeout": Key(type="float", default=300.0, above=0),
    "trainer.stall_timeout": Key(type="float", default=1800.0, above=0),
    "model.weights_load_path": Key(type="str", default=None),
    "model.batch_size": Key(type="int", required=True, minimum=1),
    "model.num_steps": Key(type="int", required=True, minimum=0),
    "model.num_epochs": Key(type="int", default=None, minimum=1),
    "model.data_sharding": Key(type="str", default="batch", choices=("batch", "files", "none")),
    "model.accumulate_steps": Key(type="int", default=1, minimum=1),
    "model.jit_compile": Key(type="bool", default=False, choices=("loop", "auto")),
    "model.mixed_precision": Key(type="str", default=None, choices=("mixed_bfloat16", "mixed_float16")),
    "model.trainable_variables.filter_fn": _FUNCTION,
    "model.trainable_variables.filter_regex": _REGEX,
    "model.weight_decay.value": Key(type="float", default=0.0, minimum=0),
    "model.weight_decay.l1": Key(type="float", default=0.0, minimum=0),
    "model.weight_decay.filter_fn": _FUNCTION,
    "model.weight_decay.filter_regex": _REGEX,
    "model.clip_gradients": Key(type="bool", default=False),
    "model.clip_gradients.minval": Key(type="float", default=-1.0),
    "model.clip_gradients.maxval": Key(type="float", default=1.0),
    "model.clip_gradients.global_norm": Key(type="float", default=None, above=0),
    "model.optimizer.method": Key(type="optimizer", choices=("msgd", "adam", "rmsprop", "sgd", *KERAS_OPTIMIZERS)),
    "model.optimizer.msgd.momentum": Key(type="float", default=0.9, minimum=0, maximum=1),
    "model.optimizer.msgd.use_nesterov": Key(type="bool", default=False),
    "model.optimizer.adam.beta1": Key(type="float", default=0.9, minimum=0, below=1),
    "model.optimizer.adam.beta2": Key(type="float", default=0.999, minimum=0, below=1),
    "model.optimizer.adam.epsilon": Key(type="float", default=1e-8, minimum=0),
    "model.optimizer.rmsprop.decay": Key(type="float", default=0.9, minimum=0, maximum=1),
    "model.optimizer.rmsprop.momentum": Key(type="float", default=0.0, minimum=0, maximum=1),
    "model.optimizer.rmsprop.epsilon": Key(type="float", default=1e-10, minimum=0),
    "model.optimizer.rmsprop.centered": Key(type="bool", default=False),
    **{
        f"model.optimizer.{method}.{name}": Key(type="bool" if isinstance(default, bool) else "float", default=default)
        for method, (_, arguments) in KERAS_OPTIMIZERS.items()
        for name, default in arguments.items()
    },
    "model.lr_schedule.method": Key(type="str", choices=SCHEDULES),
    "model.lr_schedule.warmup_steps": Key(type="int", default=0, minimum=0),
    "model.lr_schedule.warmup_start": Key(type="float", default=0.0, minimum=0),
    "model.lr_schedule.step.boundaries": Key(type="list[int]", minimum=0),
    "model.lr_schedule.step.values": Key(type="list[float]", minimum=0),
    "model.lr_schedule.constant.value": Key(type="float", minimum=0),
    "model.lr_schedule.exp.value": Key(type="float", minimum=0),
    "model.lr_schedule.exp.decay_rate": Key(type="float", above=0),
    "model.lr_schedule.exp.decay_steps": Key(type="int", above=0),
    "model.lr_schedule.exp.staircase": Key(type="bool", default=False),
    "model.lr_schedule.custom.fn": Key(type="function"),
    "model.lr_schedule.cosine.value": Key(type="float", minimum=0),
    "model.lr_schedule.cosine.decay_steps": Key(type="int", default=None, above=0),
    "model.lr_schedule.cosine.final": Key(type="float", default=0.0, minimum=0),
    "model.lr_schedule.polynomial.value": Key(type="float", minimum=0),
    "model.lr_schedule.polynomial.decay_steps": Key(type="int", default=None, above=0),
    "model.lr_schedule.polynomial.final": Key(type="float", default=0.0, minimum=0),
    "model.lr_schedule.polynomial.power": Key(type="float", default=1.0, above=0),
    "model.lr_schedule.linear.steps": Key(type="list[int]", minimum=0),
    "model.lr_schedule.linear.values": Key(type="list[float]", minimum=0),
    "actions.export.inputs": Key(type="list[str]"),
    "actions.export.outputs": Key(type="list[str]"),
}


STEP_KEYS: Final[dict[str, str]] = {
    "model.weight_decay": "the step does not add self.weight_decay_loss() to the loss",
    "model.clip_gradients": "the step does not update with self.apply_gradients()",
    "model.accumulate_steps": "the step does not divide its batch",
    "model.jit_compile": "the step is not compiled as a whole; use tf.function(jit_compile=True) for its parts",
    "model.mixed_precision": "the step does not compute gradients with self.gradients(), which scales the loss",
}
"""The groups of keys that act within a step, and why a trainer's own step may ignore them."""

_WEIGHT_DECAY = ("model.weight_decay.value", "model.weight_decay.l1")
NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "trainer.keep_best.mode": ("trainer.keep_best",),
    **{f"trainer.early_stopping.{name}": ("trainer.early_stopping",) for name in ("mode", "patience", "min_delta")},
    "trainer.early_stopping.restore_best": ("trainer.early_stopping",),
    **{f"model.weight_decay.filter_{kind}": _WEIGHT_DECAY for kind in ("fn", "regex")},
    **{f"model.clip_gradients.{name}": ("model.clip_gradients",) for name in ("minval", "maxval")},
    "model.lr_schedule.warmup_start": ("model.lr_schedule.warmup_steps",),
}
"""Keys that have an effect only if one of some other keys is set."""


def intervals(value: int | str) -> dict[str, Any]:
    """Return the value of an interval as arguments for `Callback.every`.

    >>> intervals(100), intervals("2 epochs")
    ({'steps': 100}, {'epochs': 2})
    """
    return {"epochs": int(value.split()[0])} if isinstance(value, str) else {"steps": value}


def short_repr(value: Any) -> str:
    """Return `repr(value)` on one line, shortened for a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_namespace(key: str) -> bool:
    """Return whether there are keys below `key`."""
    return any(known.startswith(f"{key}.") for known in SCHEMA)


def is_strict(key: str) -> bool:
    """Return whether `key` is in a namespace in which every key must be in the schema."""
    return any(key == namespace or key.startswith(f"{namespace}.") for namespace in STRICT_NAMESPACES)


def _import_function(reference: str) -> Any:
    try:
        return pkgutil.resolve_name(reference)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        what = f"{type(error).__name__}: {short_repr(str(error))}"
        raise ConfigError(f"cannot import {reference!r}: {what}") from error


def _convert(kind: str, spec: Key, value: Any) -> Any:
    """Return `value` in its stored form, or UNSET if it has the wrong type or is out of bounds."""
    if kind.startswith("list"):
        elements = [_convert(kind[5:-1], spec, x) for x in value] if isinstance(value, (list, tuple)) else [UNSET]
        return UNSET if any(x is UNSET for x in elements) else elements
    if isinstance(value, str) and (value in spec.choices or (kind == "interval" and _EPOCHS.fullmatch(value))):
        return value
    if kind == "":  # an item of a mixed list
        return value
    if kind in ("bool", "str", "dict"):
        return value if _kind(value) == kind and (kind != "str" or not spec.choices) else UNSET
    if kind in ("int", "interval"):
        if _kind(value) == "float" and float(value).is_integer():  # such as 1e5
            value = int(value)
        return int(value) if _kind(value) == "int" and spec.in_bounds(value) else UNSET
    if kind == "float":
        is_number = _kind(value) in ("int", "float") and abs(value) < 1e308  # no float can hold a larger int
        return float(value) if is_number and spec.in_bounds(float(value)) else UNSET
    if isinstance(value, str):
        value = _import_function(value) if REFERENCE.fullmatch(value) else UNSET
    return value if callable(value) or (kind == "optimizer" and isinstance(value, HasConfig)) else UNSET


def checked(key: str, value: Any) -> Any:
    """Return `value` as a Config stores it under `key`: an int for a float key becomes a float, 1e5 an int."""
    spec = SCHEMA.get(key)
    if spec is None or (value is None and spec.default is None):
        return value
    if value is None and "none" in spec.choices:  # YAML and the command line read "none" as None
        value = "none"
    try:
        converted = _convert(spec.type, spec, value)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error.__cause__
    if converted is UNSET:
        meant = did_you_mean(value, spec.choices) if isinstance(value, str) else ""
        raise ConfigError(f"{key}: expected {spec.expected}, got {short_repr(value)}{meant}")
    complaint = spec.complaint(converted) if spec.complaint else None
    if complaint is not None:
        raise ConfigError(f"{key}: {short_repr(value)} {complaint}")
    return converted


def of_same_type(key: str, value: Any, default: Any) -> Any:
    """Return `value` as the type of a model's own `default`: an int for a float becomes a float, a list a tuple.

    Defaults that are not plain data, such as functions and dtypes, accept any value, and so do items of mixed lists.
    """
    kind = _kind(default)
    if kind is None:
        return value
    converted = _convert(kind, _ANY, value)
    if converted is UNSET:
        raise ConfigError(f"{key}: expected {kind}, got {short_repr(value)}")
    return tuple(converted) if isinstance(default, tuple) else converted


def _kind(value: Any) -> str | None:
    """Return the type of plain data, with the common type of the items of a list; None for anything else."""
    if isinstance(value, (list, tuple)):
        kinds = {_kind(item) for item in value}
        kinds = {"float"} if kinds == {"float", "int"} else kinds
        return f"list[{kinds.pop()}]" if len(kinds) == 1 and None not in kinds else "list"
    names = {bool: "bool", numbers.Integral: "int", numbers.Real: "float", str: "str", dict: "dict"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), None)
