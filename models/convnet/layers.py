"""A network as a list of entries: checks and layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from prototrain.config.schema import short_repr
from prototrain.errors import ConfigError

from .fields import Field, choice, integer, share, size
from .presets import PRESETS

KEY = "model.layers"
CLASSES = "classes"
ACTIVATIONS = ("elu", "gelu", "leaky_relu", "relu", "selu", "sigmoid", "silu", "softplus", "tanh")

TYPES: dict[str, dict[str, Field]] = {
    "conv": {
        "filters": integer(),
        "kernel_size": size(),
        "strides": size(default=1, required=False),
        "padding": choice("same", "valid"),
        "activation": choice(None, *ACTIVATIONS),
        "use_bias": choice(True, False),
    },
    "pool": {
        "size": size(),
        "strides": size(required=False),  # by default as size
        "padding": choice("valid", "same"),
        "method": choice("max", "avg"),
    },
    "batch_norm": {"momentum": share(default=0.9), "activation": choice(None, *ACTIVATIONS)},
    "dropout": {"rate": share()},
    "fc": {
        "units": Field(expected=f'an int >= 1 or "{CLASSES}"', accepts=lambda u: u == CLASSES or integer().accepts(u)),
        "activation": choice(None, *ACTIVATIONS),
        "use_bias": choice(True, False),
    },
}


@dataclass(frozen=True)
class Layer:
    """A valid entry.

    Attributes:
        place: its place for messages, such as ``model.layers[2] (pool)``.
        type: one of `TYPES`.
        name: the name of the layer, such as ``conv0``; the last one is ``logits``.
        options: all members of the entry, with defaults.
    """

    place: str
    type: str
    name: str
    options: dict[str, Any]

    def __call__(self, x: tf.Tensor, train_phase: bool) -> tf.Tensor:
        """Apply the layer to `x`, images [batch, height, width, channels] or vectors [batch, units].

        Raises:
            ConfigError: the images are smaller than the layer's window.
        """
        options = self.options
        match self.type:
            case "conv":
                self._check_window(x, options["kernel_size"])
                return keras.layers.Conv2D(**options, name=self.name)(x)
            case "pool":
                self._check_window(x, options["size"])
                kind = {"max": keras.layers.MaxPooling2D, "avg": keras.layers.AveragePooling2D}[options["method"]]
                return kind(options["size"], options["strides"], options["padding"], name=self.name)(x)
            case "batch_norm":
                x = keras.layers.BatchNormalization(momentum=options["momentum"], name=self.name)(
                    x, training=train_phase
                )
                return keras.activations.get(options["activation"])(x)
            case "dropout":
                return keras.layers.Dropout(options["rate"], name=self.name)(x, training=train_phase)
        return keras.layers.Dense(**options, name=self.name)(keras.layers.Flatten()(x))

    def _check_window(self, x: tf.Tensor, size: int | list[int]) -> None:
        height, width = x.shape[1:3]
        rows, columns = size if isinstance(size, list) else (size, size)
        if self.options["padding"] == "valid" and (rows > height or columns > width):
            raise ConfigError(
                f"{self.place}: its window of {rows}x{columns} does not fit into the {height}x{width} that the layers "
                'before leave of an image; take padding "same", fewer strides and pools, or a larger '
                "model.picture_size"
            )


def read_layers(value: Any, *, classes: int) -> list[Layer]:
    """Check ``model.layers``.

    Args:
        value: a list of entries, or the name of a preset.
        classes: the number of classes.

    Raises:
        ConfigError: an entry is wrong.
    """
    entries = PRESETS.get(value) if isinstance(value, str) else value
    if not isinstance(entries, list) or not entries:
        presets = ", ".join(PRESETS)
        raise ConfigError(f"{KEY}: expected a list of entries or a preset ({presets}), got {short_repr(value)}")
    layers: list[Layer] = []
    for index, entry in enumerate(entries):
        layers.append(_read_entry(index, entry, layers, last=index == len(entries) - 1, classes=classes))
    last = layers[-1]
    if last.type != "fc" or last.options["activation"] is not None or last.options["units"] != classes:
        raise ConfigError(
            f"{last.place}: the last entry gives the logits, so it must be "
            f'{{"type": "fc", "units": "{CLASSES}"}}: no activation, and {classes} units as model.num_classes says'
        )
    return layers


def _read_entry(index: int, entry: Any, before: list[Layer], *, last: bool, classes: int) -> Layer:
    place = f"{KEY}[{index}]"
    if not isinstance(entry, Mapping) or "type" not in entry:
        raise ConfigError(f'{place}: expected an entry such as {{"type": "fc", "units": 10}}, got {short_repr(entry)}')
    kind = entry["type"]
    if not isinstance(kind, str) or kind not in TYPES:
        raise ConfigError(f"{place}: unknown type {short_repr(kind)}; known are {', '.join(TYPES)}")
    place, fields = f"{place} ({kind})", TYPES[kind]
    for name in entry:
        if name != "type" and name not in fields:
            raise ConfigError(f"{place}: unknown member {short_repr(name)}; known are {', '.join(fields)}")
    options = {}
    for name, field in fields.items():
        if name not in entry and field.required:
            raise ConfigError(f"{place}: {name} is missing; expected {field.expected}")
        options[name] = field.check(f"{place}: {name}", entry[name]) if name in entry else field.default
    flat = next((layer.place for layer in before if layer.type == "fc"), None)
    if flat is not None and kind in ("conv", "pool"):
        raise ConfigError(f"{place}: works on images, but {flat} before it has made vectors of them")
    if options.get("units") == CLASSES:
        options["units"] = classes
    name = "logits" if last else f"{kind}{sum(layer.type == kind for layer in before)}"
    return Layer(place, kind, name, options)
