"""Lossless JSON encoding of plain values and random generator states.

Decoding restores the same types, values and bits. JSON has no tuples, bytes, arrays or keys that are not strings, so
these are encoded as a dict with a single tag. Any other value that JSON would change is rejected.
"""

from __future__ import annotations

import json
import random
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import CheckpointError
from prototrain.tf_private import (
    KerasVariable,
    drawing_seeds,
    preserve_keras_globals,
    set_tensorflow_seed,
    tensorflow_seed,
)

TAG = "prototrain:"
"""The prefix of tags. A dict whose only key starts with it is a tagged value."""
_ARRAY, _SCALAR, _BYTES, _DICT, _TUPLE = (f"{TAG}{kind}" for kind in ("array", "scalar", "bytes", "dict", "tuple"))
_LONGEST_INT = 10_000  # bits; Python limits the conversion of longer integers to text
_CURE = (
    "use numbers, text, lists, tuples, dicts and arrays; a variable, a random generator and an object with state_dict "
    "can be an entry of trainer.state"
)


def encode(value: Any, where: str, *, loose: bool = False) -> Any:
    """Encode a value as JSON types; `decode` reverses this.

    Raises a CheckpointError if a part of the value could not be restored exactly. With `loose`, such a part becomes the
    closest plain type: a tensor becomes an array, a `defaultdict` a dict.
    """
    try:
        return _encode(value, where, loose)
    except RecursionError:
        raise CheckpointError(f"{where} cannot be saved: it contains itself, or is nested too deeply") from None


def _encode(value: Any, where: str, loose: bool) -> Any:
    kind = type(value)
    if value is None or kind in (bool, float, str) or (kind is int and value.bit_length() <= _LONGEST_INT):
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
    if kind is np.ndarray or isinstance(value, np.generic):
        dtype = value.dtype
        if not dtype.hasobject and dtype.type is not np.void:  # the bytes of such an array determine its values
            named = dtype.name if dtype.kind == "V" else dtype.str  # bfloat16 and similar types are of kind V
            order = "F" if value.flags.fnc else "C"
            tag = _ARRAY if kind is np.ndarray else _SCALAR
            return {tag: [named, value.shape, order, b64encode(value.tobytes(order)).decode()]}
    if loose and (near := _nearest(value)) is not value:
        return _encode(near, where, loose)
    dtype = f" of dtype {value.dtype}" if isinstance(value, np.ndarray | np.generic) else ""
    raise CheckpointError(
        f"{where} cannot be saved: a value of type {kind.__name__}{dtype} cannot be restored unchanged; {_CURE}"
    )


def _nearest(value: Any) -> Any:
    """Return the closest plain value, or the value itself if there is none."""
    if isinstance(value, tf.Tensor | tf.Variable | KerasVariable):
        return np.asarray(tf.convert_to_tensor(value))[()]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping | list | tuple):
        return dict(value) if isinstance(value, Mapping) else list(value)
    try:
        return json.loads(json.dumps(value))  # a subclass of int, float or str
    except (TypeError, ValueError):
        return value


def decode(coded: Any) -> Any:
    """Decode a value that `encode` returned; raises a ValueError or TypeError for any other."""
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
        if tag in (_ARRAY, _SCALAR):
            dtype, shape, order, data = content
            if np.dtype(dtype).hasobject:
                raise ValueError("an array of objects")  # the bytes would be used as addresses
            array = np.ndarray(tuple(shape), np.dtype(dtype), buffer=bytearray(b64decode(data)), order=order)
            return array if tag == _ARRAY else array[()]
        if tag == _BYTES:
            return b64decode(content)
    return {key: decode(item) for key, item in coded.items()}


GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


class GeneratorState:
    """Saves and restores the state of one of `GENERATORS`, which then draws the same numbers."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def state_dict(self) -> Any:
        found = self._generator
        if isinstance(found, np.random.RandomState):
            return found.get_state(legacy=False)
        if isinstance(found, np.random.Generator):
            if getattr(found.bit_generator.seed_seq, "n_children_spawned", 0):  # NumPy 1 cannot restore the number
                raise CheckpointError("a random generator that has spawned others cannot be saved; save those it made")
            return found.bit_generator.state
        return found.getstate()

    def load_state_dict(self, state: Any) -> None:
        found: Any = self._generator
        if isinstance(found, np.random.RandomState):
            found.set_state(state)
        elif isinstance(found, np.random.Generator):
            found.bit_generator.state = state
        else:
            found.setstate(state)


def random_state() -> dict[str, Any]:
    """Return the JSON-compatible state of Python's and NumPy's global random generators."""
    numpy = np.random.get_state(legacy=False)
    return {"python": encode(random.getstate(), "random"), "numpy": encode(numpy, "numpy.random")}


def set_random_state(state: dict[str, Any]) -> None:
    """Restore a state that `random_state` returned."""
    random.setstate(decode(state["python"]))
    np.random.set_state(decode(state["numpy"]))


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Context manager that restores the state of Python's and NumPy's global random generators at the end."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


@contextmanager
def tensorflow_seeded(seed: int) -> Iterator[None]:
    """Context manager that sets TensorFlow's global seed, unless the user has called `tf.random.set_seed`."""
    is_unset = tensorflow_seed() is None
    if is_unset:
        set_tensorflow_seed(seed)
    try:
        yield
    finally:
        if is_unset:
            set_tensorflow_seed(None)


@contextmanager
def preserve_global_random() -> Iterator[None]:
    """Context manager that restores all global random generators and Keras's name counters at the end."""
    seed, generator = tensorflow_seed(), drawing_seeds()
    drawn = None if generator is None else generator.getstate()
    with preserve_random_state(), preserve_keras_globals():
        try:
            yield
        finally:
            set_tensorflow_seed(seed)
            generator = drawing_seeds()  # setting the seed has created a new one
            if drawn is not None and generator is not None:
                generator.setstate(drawn)
