"""Plain values on their way into JSON and back: what JSON has no form for, or only that of something else, is tagged.

What comes back has the type and the value that it had, to the bit: tuples, bytes, complex numbers, NumPy's arrays and
scalars, dicts with keys that are no text. All else that is not JSON is refused, since it would come back otherwise.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AnySet
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.checkpoint.generators import GENERATORS
from prototrain.errors import CheckpointError
from prototrain.private_api.graphs import trackable_kinds
from prototrain.private_api.of_keras import KerasVariable

_TAG = "prototrain:"  # a dict that has such a key alone is a tagged value
_ARRAY, _SCALAR, _BYTES, _COMPLEX = (f"{_TAG}{kind}" for kind in ("array", "scalar", "bytes", "complex"))
_DICT, _INT, _TUPLE = (f"{_TAG}{kind}" for kind in ("dict", "int", "tuple"))
LOST = f"{_TAG}lost"
"""Tags why a value is not in the checkpoint."""
OBJECT = f"{_TAG}object"
"""Tags what an object's `state_dict` returned."""
STORED = f"{_TAG}stored"
"""Tags the name under which the checkpoint has an array among its variables."""

_LONGEST_INT = 10_000  # bits; Python makes no decimal text of a much longer one
_IN_BUNDLE = {"bool", "bfloat16", *(f"complex{bits}" for bits in (64, 128)), *(f"float{bits}" for bits in (16, 32, 64))}
_IN_BUNDLE |= {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}


def fits_bundle(array: np.ndarray[Any, Any]) -> bool:
    """Whether TensorFlow can hold an array as it is, so that it is saved among the variables."""
    return type(array) in (np.ndarray, np.memmap) and array.dtype.isnative and array.dtype.name in _IN_BUNDLE


def tagged(tag: str, content: Any) -> dict[str, Any]:
    """What JSON can hold, as something else than it looks like."""
    return {tag: content}


def has_tag(tag: str, coded: Any) -> bool:
    """Whether something has been tagged so."""
    return isinstance(coded, dict) and coded.keys() == {tag}


def lost_in(values: Mapping[str, Any]) -> list[str]:
    """Why entries are not in a checkpoint, in words.

    Args:
        values: what its meta.json holds of the entries.
    """
    return [coded[LOST] for coded in values.values() if has_tag(LOST, coded)]


def encode(value: Any, where: str, *, loose: bool = False) -> Any:
    """Turn a value into what JSON can hold and `decode` turns back.

    Args:
        value: of any kind.
        where: what it is called.
        loose: take what is near to a plain value as that: a tensor as an array, a `defaultdict` as a dict.

    Raises:
        CheckpointError: there is something in it that would not come back as it is.
    """
    try:
        return _encode(value, where, loose)
    except RecursionError:
        raise CheckpointError(f"{where} cannot be saved: it holds itself, or is nested too deeply") from None


def _encode(value: Any, where: str, loose: bool) -> Any:
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if value.bit_length() <= _LONGEST_INT else tagged(_INT, hex(value))
    if kind in (list, tuple):
        items = [_encode(item, f"{where}[{index}]", loose) for index, item in enumerate(value)]
        return items if kind is list else tagged(_TUPLE, items)
    if kind is dict:
        return _encode_dict(value, where, loose)
    if kind is bytes:
        return tagged(_BYTES, b64encode(value).decode())
    if kind is complex:
        return tagged(_COMPLEX, [value.real, value.imag])
    if kind is np.ndarray or isinstance(value, np.generic):
        dtype = _dtype_text(value.dtype)
        if dtype is not None:
            order = "F" if kind is np.ndarray and value.flags.fnc else "C"
            data = b64encode(value.tobytes(order)).decode()
            return (
                tagged(_ARRAY, [dtype, value.shape, order, data])
                if kind is np.ndarray
                else tagged(_SCALAR, [dtype, data])
            )
    if loose:
        return _encode_near(value, where)
    name = f"{kind.__name__} of dtype {value.dtype}" if isinstance(value, np.ndarray | np.generic) else kind.__name__
    raise CheckpointError(f"{where} cannot be saved: no checkpoint brings back a {name} as it was; {_cure(value)}")


def _encode_dict(value: dict[Any, Any], where: str, loose: bool) -> dict[str, Any]:
    pairs = [(key, _encode(item, f"{where}[{key!r}]", loose)) for key, item in value.items()]
    if all(type(key) is str for key in value) and not (len(value) == 1 and next(iter(value)).startswith(_TAG)):
        return dict(pairs)
    return tagged(_DICT, [[_encode(key, f"the key {key!r} of {where}", loose), item] for key, item in pairs])


def _encode_near(value: Any, where: str) -> Any:
    """Take a value as the plain one that it is near to."""
    if isinstance(value, tf.Tensor | tf.Variable | KerasVariable):
        near: Any = np.asarray(tf.convert_to_tensor(value))[()]
    elif isinstance(value, np.ndarray | np.generic):
        near = value.tolist()
    elif isinstance(value, Mapping):
        near = dict(value)
    elif isinstance(value, list | tuple):
        near = list(value)
    else:
        try:
            return json.loads(json.dumps(value))  # of classes that are made of int, float or str
        except (TypeError, ValueError) as error:
            name = type(value).__name__
            raise CheckpointError(f"{where} cannot be saved: {name} is neither tensor nor JSON") from error
    return _encode(near, where, loose=True)


def _cure(value: Any) -> str:
    """What to use instead."""
    if isinstance(value, tf.Tensor):
        return "use a tf.Variable"
    if isinstance(value, (KerasVariable, *GENERATORS, *trackable_kinds())):
        return "make it an entry of its own"
    if isinstance(value, Mapping):
        return "use a dict"
    if isinstance(value, list | tuple | deque | AnySet):
        return "use a list or a tuple"
    if isinstance(value, np.ndarray | np.generic):
        return "use arrays of numbers, dates or text of fixed width"
    if isinstance(value, Enum):
        return "use its value"
    return "use plain values, or give it state_dict() and load_state_dict(), as an entry of its own"


def _dtype_text(dtype: np.dtype[Any]) -> str | None:
    """What NumPy makes this dtype of; None if its values are not all in the array's own memory."""
    for text in () if dtype.hasobject else (dtype.str, dtype.name):
        try:
            if np.dtype(text) == dtype:
                return text
        except TypeError:
            continue
    return None


def decode(coded: Any) -> Any:
    """The value that `encode` was given.

    Raises:
        ValueError, TypeError: it is nothing that `encode` returns.
    """
    if isinstance(coded, list):
        return [decode(item) for item in coded]
    if not isinstance(coded, dict):
        return coded
    tag: str
    content: Any
    tag, content = next(iter(coded.items())) if len(coded) == 1 else ("", None)
    if tag == _TUPLE:
        return tuple(decode(item) for item in content)
    if tag == _DICT:
        return {decode(key): decode(item) for key, item in content}
    if tag == _ARRAY:
        dtype, shape, order, data = content
        return _array(dtype, shape, data, order)
    if tag == _SCALAR:
        dtype, data = content
        return _array(dtype, (), data)[()]
    if tag == _BYTES:
        return b64decode(content)
    if tag == _COMPLEX:
        return complex(*content)
    if tag == _INT:
        return int(content, 16)
    return {key: decode(item) for key, item in coded.items()}


def _array(dtype: str, shape: Any, data: str, order: Any = "C") -> np.ndarray[Any, Any]:
    if np.dtype(dtype).hasobject:
        raise ValueError("an array of objects")  # the bytes would be taken for their places in memory
    return np.ndarray(tuple(shape), np.dtype(dtype), buffer=bytearray(b64decode(data)), order=order)


def plain(value: Any, where: str) -> Any:
    """Turn what is not in the state dict into what JSON can hold and `decode` turns back; tensors become arrays.

    Raises:
        CheckpointError: there is something else in it; `where` says whose it is.
    """
    return encode(value, where, loose=True)
