"""What layers were made with, so that a change of it can be named."""

from __future__ import annotations

import base64
import binascii
import marshal
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from prototrain.config.json_form import encode
from prototrain.model.keras_hooks import automatic_name
from prototrain.private_api.of_keras import layers_within
from prototrain.system.function_code import done_by
from prototrain.system.objects import is_own
from prototrain.system.own_code import digest_of

_LONGEST = 200  # characters of a text that is shown


def layer_settings(layers: Iterable[Any]) -> dict[str, Any]:
    """The configuration of each layer, and of those inside of it, by their names, as JSON can hold it.

    One that makes a layer of layers is left out, since the inner ones say it; and so is what Keras cannot tell. Names
    that Keras gives count up by process: these layers are numbered here, in their order.
    """
    found: dict[str, Any] = {}
    for layer in dict.fromkeys(inner for outer in layers for inner in layers_within(outer)):
        if len(layers_within(layer)) > 1:
            continue
        try:
            config = layer.get_config()
        except NotImplementedError:  # a layer of the user's own that does not say
            continue
        own = automatic_name(layer) or layer.name
        name, number = own, 1
        while name in found:
            number += 1
            name = f"{own} ({number})"
        of_class = {"class": type(layer).__name__}
        settings = {key: _short(value) for key, value in config.items() if key not in ("name", "dtype")}
        found[name] = of_class | settings | _own_constraints(layer)
    return found


def _own_constraints(layer: Any) -> dict[str, str]:
    """Digests of constraints of the user's own, which act behind the update and are in no graph of the model."""
    constraints = [getattr(variable, "constraint", None) for variable in layer.variables]
    own = [constraint for constraint in constraints if constraint is not None and is_own(type(constraint))]
    return {"constraints": digest_of(own)} if own else {}


def _short(value: Any) -> Any:
    """A value as JSON can hold it, without what Keras needs only to make it anew, and with a digest of a long text."""
    if isinstance(value, dict) and value.keys() >= {"class_name", "config"}:
        config = value["config"] if isinstance(value["config"], dict) else {"value": value["config"]}
        if value["class_name"] == "__lambda__":
            config = _of_lambda(config)
        return {"class": value["class_name"], **_short({key: item for key, item in config.items() if key != "name"})}
    if isinstance(value, dict):
        return {str(key): _short(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(item) for item in value]
    plain = encode(value, "layer", [])
    if isinstance(plain, str) and len(plain) > _LONGEST:
        return f"{plain[:20]}... ({sha256(plain.encode()).hexdigest()[:8]})"
    return plain


def _of_lambda(config: dict[str, Any]) -> dict[str, Any]:
    """How Keras describes a lambda, with a digest in place of its code, which has the file and the lines in it."""
    if isinstance(config.get("value"), (list, tuple)) and len(config["value"]) == 3:  # one that is an argument
        config = dict(zip(("code", "defaults", "closure"), config["value"], strict=True))
    try:
        # Keras has made it in this process, of a function that there is.
        code = marshal.loads(base64.b64decode(config["code"]))
    except (KeyError, TypeError, ValueError, EOFError, binascii.Error):  # another version of Keras has another form
        return config
    return {**config, "code": f"{sha256(done_by(code).encode()).hexdigest()[:12]}"}
