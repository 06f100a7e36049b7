"""Plain values as JSON, and back with the same types, values and bits.

JSON has no tuples, bytes, arrays or keys that are not text: they are written as a dict with one tag. Every other value
that JSON would change is refused.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import CheckpointError
from prototrain.tf_private import KerasVariable

TAG = "prototrain:"
"""A dict whose only key starts with this is a tagged value."""
_ARRAY, _SCALAR, _BYTES, _DICT, _TUPLE = (f"{TAG}{kind}" for kind in ("array", "scalar", "bytes", "dict", "tuple"))
_LONGEST_INT = 10_000  # bits; Python does not print much longer ones
_CURE = (
    "use numbers, text, lists, tuples, dicts and arrays; a variable, a random generator and an object with state_dict "
    "can be an entry of trainer.state"
)


def encode(value: Any, where: str, *, loose: bool = False) -> Any:
    """Turn a value into JSON's types; `decode` turns it back.

    Args:
        value: of any type.
        where: its name, for errors.
        loose: accept what is almost a plain value: a tensor becomes an array, a `defaultdict` a dict.

    Raises:
        CheckpointError: a part of it would not come back as it is.
    """
    try:
        return _encode(value, where, loose)
    except RecursionError:
        raise CheckpointError(f"{where} cannot be saved: it contains itself, or is nested too deeply") from None


def plain(value: Any, where: str) -> Any:
    """Encode what is outside of `trainer.state`; see `encode` with `loose`."""
    return encode(value, where, loose=True)


def _encode(value: Any, where: str, loose: bool) -> Any:
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int and value.bit_length() <= _LONGEST_INT:
        return value
    if kind in (list, tuple):
        items = [_encode(item, f"{where}[{index}]", loose) for index, item in enumerate(value)]
        return items if kind is list else {_TUPLE: items}
    if kind is dict:
        pairs = [(key, _encode(item, f"{where}[{key!r}]", loose)) for key, item in value.items()]
        if all(type(key) is str for key in value) and not (len(value) == 1 and next(iter(value)).startswith(TAG)):
            return dict(pairs)
        return {_DICT: [[_encode(key, f"the key {key!r} of {where}", loose), item] for key, item in pairs]}
    if kind is bytes:
        return {_BYTES: b64encode(value).decode()}
    if (kind is np.ndarray or isinstance(value, np.generic)) and not _is_opaque(value.dtype):
        return _encode_array(value)
    if loose and (near := _nearest(value)) is not value:
        return _encode(near, where, loose)
    dtype = f" of dtype {value.dtype}" if isinstance(value, np.ndarray | np.generic) else ""
    raise CheckpointError(f"{where} cannot be saved: a {kind.__name__}{dtype} would not come back as it is; {_CURE}")


def _is_opaque(dtype: np.dtype[Any]) -> bool:
    """Whether an array's bytes are not its values, or its dtype has no name that NumPy reads."""
    return dtype.hasobject or dtype.type is np.void


def _encode_array(value: Any) -> dict[str, Any]:
    dtype = value.dtype.name if value.dtype.kind == "V" else value.dtype.str  # bfloat16 and its like are of kind V
    if isinstance(value, np.generic):
        return {_SCALAR: [dtype, b64encode(value.tobytes()).decode()]}
    order = "F" if value.flags.fnc else "C"
    return {_ARRAY: [dtype, value.shape, order, b64encode(value.tobytes(order)).decode()]}


def _nearest(value: Any) -> Any:
    """The plain value that is closest to another one; the value itself if there is none."""
    if isinstance(value, tf.Tensor | tf.Variable | KerasVariable):
        return np.asarray(tf.convert_to_tensor(value))[()]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return list(value)
    try:
        return json.loads(json.dumps(value))  # a subclass of int, float or str
    except (TypeError, ValueError):
        return value


def decode(coded: Any) -> Any:
    """The value that `encode` was given.

    Raises:
        ValueError, TypeError: `encode` returns nothing like that.
    """
    if isinstance(coded, list):
        return [decode(item) for item in coded]
    if not isinstance(coded, dict):
        return coded
    if len(coded) == 1:
        content: Any
        ((tag, content),) = coded.items()
        if tag == _TUPLE:
            return tuple(decode(item) for item in content)
        if tag == _DICT:
            return {decode(key): decode(item) for key, item in content}
        if tag == _ARRAY:
            dtype, shape, order, data = content
            return _decode_array(dtype, shape, data, order)
        if tag == _SCALAR:
            dtype, data = content
            return _decode_array(dtype, (), data)[()]
        if tag == _BYTES:
            return b64decode(content)
    return {key: decode(item) for key, item in coded.items()}


def _decode_array(dtype: str, shape: Any, data: str, order: Any = "C") -> np.ndarray[Any, Any]:
    if np.dtype(dtype).hasobject:
        raise ValueError("an array of objects")  # the bytes would be used as addresses
    return np.ndarray(tuple(shape), np.dtype(dtype), buffer=bytearray(b64decode(data)), order=order)
