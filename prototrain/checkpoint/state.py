"""The entries of `trainer.state`: how they are saved, restored and checked for finite values."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol, runtime_checkable

import keras
import numpy as np
import tensorflow as tf

from prototrain.checkpoint.store import READ_ERRORS, Checkpoint, Saveable, prefix_of
from prototrain.checkpoint.values import GENERATORS, TAG, GeneratorState, decode, encode
from prototrain.errors import CheckpointError
from prototrain.system.terminal import FRESH, shorten_list
from prototrain.system.tracebacks import cause
from prototrain.tf_private import KerasVariable, Trackable
from prototrain.towers import components

CALLBACK_PREFIX = "callbacks/"
"""The prefix of the variables that callbacks add to `trainer.state`."""

_CURE = f"use {FRESH}, another trainer.experiment_name, or model.weights_load_path to load the weights that match"
_HOLDERS = (keras.layers.Layer, keras.optimizers.Optimizer, keras.metrics.Metric, tf.Module)
# Tags of entries in meta.json: the result of a `state_dict`, and the name of an array in the bundle.
_OBJECT, _STORED = (f"{TAG}{kind}" for kind in ("object", "stored"))
_IN_BUNDLE = {"bool", "bfloat16", "complex64", "complex128", "float16", "float32", "float64"}
_IN_BUNDLE |= {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}


@runtime_checkable
class HasStateDict(Protocol):
    """An object that returns and restores its state as plain values."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


class _SaveableTrackable:
    """Saves a TensorFlow trackable, such as an iterator or a random generator, in its own bundle."""

    def __init__(self, trackable: Any) -> None:
        self._checkpoint = tf.train.Checkpoint(item=trackable)

    def write(self, prefix: str) -> None:
        self._checkpoint.write(prefix)

    def read(self, prefix: str, meta: None) -> None:
        try:
            self._checkpoint.read(prefix).assert_consumed()
        except READ_ERRORS as error:
            raise CheckpointError(f"{prefix} cannot be restored: {cause(error)}") from error


class StateEntries:
    """The entries of `trainer.state`, grouped by how they are saved.

    - By name in the bundle: variables, NumPy arrays, the generators of Keras and TensorFlow, and the variables of
      layers, models, optimizers, metrics and `tf.Module`, as ``<key>/<path>``.
    - In separate files: a `Saveable` and any other TensorFlow trackable.
    - In meta.json: objects with `state_dict` and `load_state_dict`, random generators, and plain values.

    Arrays and plain values are data: those in a checkpoint may have another type or shape, or other keys.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state
        self.variables: dict[str, Any] = {}  # the entries in the bundle, by name
        self.saveables: dict[str, Saveable] = {}  # the entries in separate files, by key
        self._arrays: dict[str, str] = {}  # the arrays' names in the bundle, by key
        self._objects: dict[str, HasStateDict] = {}
        self._values: list[str] = []
        for key, entry in state.items():
            self._add(key, entry)

    def _add(self, key: str, entry: Any) -> None:
        if isinstance(entry, (tf.Variable, KerasVariable)):
            self._add_variable(key, entry)
        elif _fits_bundle(entry):
            self._arrays[key] = self._add_variable(key, entry)
        elif isinstance(entry, (keras.random.SeedGenerator, tf.random.Generator)):
            self._add_variable(key, entry.state)
        elif isinstance(entry, _HOLDERS):
            is_unbuilt = isinstance(entry, keras.optimizers.Optimizer) and not entry.built
            if is_unbuilt or not entry.variables:
                raise CheckpointError(
                    f"state[{key!r}] has no variables yet; build it before train() (an optimizer with build(variables))"
                )
            for variable in entry.variables:
                path = getattr(variable, "path", None) or variable.name.split(":")[0]
                self._add_variable(f"{key}/{path}", variable)
        elif isinstance(entry, Saveable) and not isinstance(entry, tf.train.Checkpoint):  # its `read` is another one
            self.saveables[key] = entry
        elif isinstance(entry, HasStateDict):
            self._objects[key] = entry
        elif isinstance(entry, GENERATORS):
            self._objects[key] = GeneratorState(entry)
        elif isinstance(entry, Trackable):
            self.saveables[key] = _SaveableTrackable(entry)
        else:
            self._values.append(key)

    def _add_variable(self, name: str, variable: Any) -> str:
        unique = unique_name(name, self.variables)
        self.variables[unique] = variable
        return unique

    def values(self) -> dict[str, Any]:
        """Return the entries as JSON-compatible values for meta.json; a CheckpointError if one has no such form."""
        found: dict[str, Any] = {key: encode(self._state[key], f"state[{key!r}]") for key in self._values}
        found |= {key: {_STORED: name} for key, name in self._arrays.items()}
        for key, holder in self._objects.items():
            found[key] = {_OBJECT: encode(holder.state_dict(), f"state[{key!r}]", loose=True)}
        return found

    @property
    def required(self) -> set[str]:
        """The names of the variables that a checkpoint must have. Arrays and callbacks may differ."""
        return {name for name in self.variables if not name.startswith(CALLBACK_PREFIX)} - set(self._arrays.values())

    @contextmanager
    def restoring(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Context manager that restores the state from a verified checkpoint; variables change only if nothing fails.

        On entry, the whole checkpoint is read and checked, and objects and entries in separate files are restored.
        The block restores whatever is not in the state. At the end, if the block has not failed, variables, arrays and
        plain values are restored.
        """
        meta, values = checkpoint.meta, checkpoint.meta["values"]
        saved = checkpoint.tensors()
        data = self._read_data(values, saved)
        variables = self._match_variables(checkpoint, saved)
        missing = [key for key in (*self._values, *self._arrays) if key not in data]
        missing += [key for key in self._objects if key not in values]
        missing += [key for key in self.saveables if key not in meta["parts"]]
        if missing:
            raise CheckpointError(f"checkpoint {checkpoint.path} has no state for {', '.join(map(repr, missing))}")
        for key, entry in self.saveables.items():
            entry.read(prefix_of(checkpoint.path, key), meta["parts"][key])
        for key, holder in self._objects.items():
            with restore_errors(f"state[{key!r}]"):
                holder.load_state_dict(decode(values[key][_OBJECT]))
        del saved
        yield
        self._put(data)
        variables.reverse()
        while variables:
            variable, value = variables.pop()  # frees each value early, since the model may be large
            variable.assign(value)

    def _match_variables(self, checkpoint: Checkpoint, saved: Mapping[str, tf.Tensor]) -> list[tuple[Any, tf.Tensor]]:
        """Pair the variables, without arrays, with their saved values."""
        # A new callback starts without a state, and the state of a removed callback is ignored.
        mine = {
            name: variable
            for name, variable in self.variables.items()
            if not isinstance(variable, np.ndarray) and (name in saved or not name.startswith(CALLBACK_PREFIX))
        }
        theirs = {name: value for name, value in saved.items() if name in mine or not name.startswith(CALLBACK_PREFIX)}
        check_fit(mine, theirs, str(checkpoint.path))
        return [(variable, theirs[name]) for name, variable in mine.items()]

    def _read_data(self, values: Mapping[str, Any], saved: dict[str, tf.Tensor]) -> dict[str, Any]:
        """Decode the plain values and arrays of a checkpoint, including those that are not in the state dict yet.

        Arrays are removed from the `saved` variables.
        """
        late = [key for key in values if key not in self._state and not key.startswith(CALLBACK_PREFIX)]
        found: dict[str, Any] = {}
        for key in (*self._values, *self._arrays, *late):
            coded: Any = values.get(key)
            tag = next(iter(coded)) if isinstance(coded, dict) and len(coded) == 1 else None
            if key not in values or tag == _OBJECT:
                continue
            if tag != _STORED:
                with restore_errors(f"state[{key!r}]"):
                    found[key] = decode(coded)
            elif coded[_STORED] in saved:
                found[key] = np.array(saved.pop(coded[_STORED]))
        return found

    def _put(self, data: Mapping[str, Any]) -> None:
        """Put plain values and arrays into the state dict.

        An existing list, dict or array is filled, since a trainer may keep it in an attribute. Its items are new.
        """
        filled: set[int] = set()
        for key, value in data.items():
            old: Any = self._state.get(key)
            if id(old) in filled:  # an object that is two entries may have had two values
                old = None
            filled.add(id(old))
            if type(old) is list and type(value) is list:
                old[:] = value
            elif type(old) is dict and type(value) is dict:
                old.clear()
                old.update(value)
            elif _is_like(old, value) and old.flags.writeable:
                np.copyto(old, value)
            else:
                self._state[key] = value

    @contextmanager
    def preserve(self) -> Iterator[None]:
        """Context manager that restores the variables, arrays, objects and plain values at the end."""
        coded = self.values()
        arrays = {key: np.copy(self._state[key], "K") for key in self._arrays}
        try:
            with preserve_values([one for one in self.variables.values() if not isinstance(one, np.ndarray)]):
                yield
        finally:
            for key, holder in self._objects.items():
                holder.load_state_dict(decode(coded[key][_OBJECT]))
            self._put(arrays | {key: decode(coded[key]) for key in self._values})


def _fits_bundle(entry: Any) -> bool:
    """Return whether an entry is an array that a TensorFlow bundle can store unchanged."""
    is_array = type(entry) in (np.ndarray, np.memmap)
    return is_array and entry.dtype.isnative and entry.dtype.name in _IN_BUNDLE


def _is_like(old: Any, value: Any) -> bool:
    """Return whether two values are arrays of one dtype and shape."""
    are_arrays = isinstance(old, np.ndarray) and isinstance(value, np.ndarray)
    return are_arrays and (old.dtype, old.shape) == (value.dtype, value.shape)


@contextmanager
def restore_errors(what: str) -> Iterator[None]:
    """Context manager that turns errors from a malformed state into a `CheckpointError` of one line."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{what} cannot be restored: {type(error).__name__}: {cause(error)}") from error


@contextmanager
def preserve_values(variables: Iterable[Any]) -> Iterator[None]:
    """Context manager that restores the values of variables at the end, in each tower."""
    # A tensor keeps the value it was read with; TensorFlow copies only a variable that changes.
    kept = [(part, tf.convert_to_tensor(part)) for variable in variables for part in components(variable)]
    try:
        yield
    finally:
        for part, value in kept:
            part.assign(value)


def variables_in(state: dict[str, Any]) -> dict[str, Any]:
    """Return the TensorFlow and Keras variables in a state dict by name, including those of layers and modules."""
    found = StateEntries(state).variables
    return {name: one for name, one in found.items() if isinstance(one, tf.Variable | KerasVariable)}


def check_fit(variables: Mapping[str, Any], saved: Mapping[str, tf.Tensor], where: str, *, cure: str = _CURE) -> None:
    """Raise a CheckpointError if a variable exists on one side only, or its shape or dtype differs."""
    problems = [f"{name} is new in the model" for name in variables if name not in saved]
    problems += [f"{name} is no longer in the model" for name in saved if name not in variables]
    for name in variables.keys() & saved.keys():
        own, stored = (describe_variable(side[name]) for side in (variables, saved))
        if own != stored:
            problems.append(f"{name} is {stored} in the checkpoint and {own} in the model")
    if problems:
        mine, theirs = ({re.sub(r"_\d+", "", name) for name in names} for names in (variables, saved))
        numbered = mine == theirs and variables.keys() != saved.keys()
        hint = "Keras numbers unnamed layers by process, so give them names; else " if numbered else ""
        more = f" (and {len(problems) - 4} more)" if len(problems) > 4 else ""
        raise CheckpointError(
            f"checkpoint {where} does not fit this model: {'; '.join(sorted(problems)[:4])}{more}; {hint}{cure}"
        )


def unique_name(name: str, taken: Container[str], *, first: int = 1) -> str:
    """Return a name that is not taken: the given one, or else with a number."""
    unique, numbers = name, count(first)
    while unique in taken:
        unique = f"{name}_{next(numbers)}"
    return unique


def describe_variable(variable: Any) -> str:
    """Return the dtype and shape of a variable, such as ``float32[64,128]``."""
    return f"{tf.as_dtype(variable.dtype).name}[{','.join(str(size) for size in variable.shape)}]"


def not_finite(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the tensors, variables and arrays with NaN or infinite values."""
    found = []
    for name, value in values.items():
        dtype = tf.as_dtype(value.dtype)
        if dtype.is_floating or dtype.is_complex:
            array = np.asarray(value if isinstance(value, np.ndarray) else tf.convert_to_tensor(value))
            if not np.isfinite(array).all():
                found.append(name)
    return found


def describe_not_finite(names: Sequence[str]) -> str:
    """Return the result of `not_finite` as text."""
    return f"{shorten_list(names, 4)} {'is' if len(names) == 1 else 'are'} not finite"
