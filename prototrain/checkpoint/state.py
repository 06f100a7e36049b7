"""What a trainer registers in `trainer.state`, on its way into a checkpoint and back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import keras
import numpy as np
import tensorflow as tf

from prototrain.checkpoint.bundle import READ_ERRORS
from prototrain.checkpoint.files import (
    HOLDS_DATASETS,
    Checkpoint,
    Saveable,
    file_holds_graph,
    prefix_of,
)
from prototrain.checkpoint.fit import check_fit, match_towers
from prototrain.checkpoint.generators import GENERATORS, GeneratorState
from prototrain.checkpoint.values import LOST, OBJECT, STORED, decode, encode, fits_bundle, has_tag, tagged
from prototrain.errors import CheckpointError
from prototrain.private_api.graphs import trackable_kinds
from prototrain.private_api.of_keras import KerasVariable
from prototrain.system.tracebacks import first_line
from prototrain.towers import components

OF_CALLBACKS = "callbacks/"
"""What the names of variables that callbacks add to `trainer.state` start with."""

_LONGEST_PREFIX = 200  # bytes; TensorFlow adds up to 30


@runtime_checkable
class HasStateDict(Protocol):
    """An object that gives and takes its state as plain values."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


class _SaveableTrackable:
    """Saves any TensorFlow trackable, such as an iterator or a random generator, in a bundle of its own."""

    def __init__(self, trackable: Any) -> None:
        self._checkpoint = tf.train.Checkpoint(item=trackable)

    def write(self, prefix: str) -> None:
        self._checkpoint.write(prefix)

    def read(self, prefix: str, meta: None) -> None:
        try:
            self._checkpoint.read(prefix).assert_consumed()
        except READ_ERRORS as error:
            raise CheckpointError(f"{prefix} cannot be restored: {first_line(error)}") from error


class StateEntries:
    """The entries of a state dict, sorted by how they are saved.

    Variables, NumPy arrays and Keras's seed generators are saved by name; a Keras layer, model or optimizer and a
    `tf.Module` as its variables, named ``<key>/<path>``; a `Saveable` and any other trackable in files of its own; what
    has `state_dict` and `load_state_dict`, random generators of NumPy and Python, and plain values, in meta.json.
    Plain values and arrays are data: what they are, and of which shape, may be another when they are restored.

    Args:
        state: `trainer.state`.

    Raises:
        CheckpointError: an entry is none of these, or has no variables yet.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state
        self.variables: dict[str, Any] = {}
        self.saveables: dict[str, Saveable] = {}
        self._objects: dict[str, HasStateDict] = {}
        self._values: list[str] = []
        self._arrays: dict[str, str] = {}  # their names among the variables, by key
        for key, entry in state.items():
            self._add(key, entry)

    def _add(self, key: str, entry: Any) -> None:
        if isinstance(entry, (tf.Variable, KerasVariable)):
            self._add_variable(key, entry)
        elif isinstance(entry, np.ndarray) and fits_bundle(entry):
            self._arrays[key] = self._add_variable(key, entry)
        elif isinstance(entry, keras.random.SeedGenerator):
            self._add_variable(key, entry.state)
        elif isinstance(entry, (keras.layers.Layer, keras.optimizers.Optimizer, keras.metrics.Metric, tf.Module)):
            if isinstance(entry, keras.optimizers.Optimizer) and not entry.built:
                raise CheckpointError(
                    f"state[{key!r}] is an optimizer without its variables; call its build(variables) before train()"
                )
            if not entry.variables:
                raise CheckpointError(f"state[{key!r}] has no variables yet; build it before train()")
            for variable in entry.variables:
                path = getattr(variable, "path", None) or variable.name.split(":")[0]
                self._add_variable(f"{key}/{path}", variable)
        elif isinstance(entry, Saveable):
            self.saveables[key] = entry
        elif isinstance(entry, HasStateDict):
            self._objects[key] = entry
        elif isinstance(entry, GENERATORS):
            self._objects[key] = GeneratorState(entry)
        elif isinstance(entry, trackable_kinds()):
            self.saveables[key] = _SaveableTrackable(entry)
        else:
            self._values.append(key)

    def _add_variable(self, name: str, variable: Any) -> str:
        unique, number = name, 0
        while unique in self.variables:
            number += 1
            unique = f"{name}_{number}"
        self.variables[unique] = variable
        return unique

    def values(self) -> dict[str, Any]:
        """What meta.json holds of the entries.

        One that has become something which cannot be saved must not cost the others: why it is not there stands in its
        place.
        """
        found: dict[str, Any] = {}
        for key in (*self._values, *self._arrays, *self._objects):
            try:
                found[key] = self._coded(key)
            except CheckpointError as error:
                found[key] = tagged(LOST, str(error))
        return found

    def _coded(self, key: str) -> Any:
        if key in self._arrays:
            return tagged(STORED, [self._arrays[key], _order_of(self._state[key])])
        if key in self._objects:
            return tagged(OBJECT, encode(self._objects[key].state_dict(), f"state[{key!r}]", loose=True))
        return encode(self._state[key], f"state[{key!r}]")

    def late(self, registered: Collection[str]) -> list[str]:
        """The variables that have come in since the run began; those of callbacks may, and data may.

        Args:
            registered: the names of those that were there then.
        """
        arrays = self._arrays.values()
        mine = [name for name in self.variables if not name.startswith(OF_CALLBACKS) and name not in arrays]
        return [name for name in mine if name not in registered]

    def check(self) -> None:
        """Check that a checkpoint can hold all of it, before there is anything to lose.

        Raises:
            CheckpointError: it names an entry that cannot be saved, and why.
        """
        for key in (*self._values, *self._objects):
            self._coded(key)
        for key in self.saveables:
            name = Path(prefix_of(Path(), key)).name
            if len(name) > _LONGEST_PREFIX:
                raise CheckpointError(
                    f"state[{key[:40]!r}...] cannot be saved: its name makes that of a file, and is too long for it "
                    f"({len(name)} bytes, {_LONGEST_PREFIX} are possible)"
                )
        for key, entry in self._state.items():
            if isinstance(entry, tf.data.Iterator):  # only a trial tells, and one that has not begun is small
                _try_to_save(self.saveables[key], f"state[{key!r}]")

    def restore(self, checkpoint: Checkpoint, *, beside: Callable[[], object] = lambda: None) -> None:
        """Put a checkpoint's content back: all of it or, when something does not fit, nothing.

        Everything is read and checked first; then comes what may still fail; variables and values are last.

        Args:
            checkpoint: has been verified.
            beside: restores what is not in the state dict.

        Raises:
            CheckpointError: the checkpoint does not fit, or cannot be read.
        """
        saved = checkpoint.tensors() if checkpoint.meta["variables"] else {}
        values = checkpoint.meta["values"]
        data = self._data(values, saved)
        # A callback that is new starts without a state, and that of one that is gone is not used.
        mine = {name: v for name, v in self.variables.items() if not name.startswith(OF_CALLBACKS) or name in saved}
        known = {name for key, name in self._arrays.items() if key in data or has_tag(LOST, values.get(key))}
        mine = {name: v for name, v in mine.items() if name not in known}
        saved = {name: v for name, v in saved.items() if not name.startswith(OF_CALLBACKS) or name in mine}
        saved = match_towers(mine, saved)
        if late := [name for name in checkpoint.meta.get("late", []) if name in saved and name not in mine]:
            raise CheckpointError(f"checkpoint {checkpoint.path} cannot be taken back: {late_words(late)}")
        check_fit(mine, saved, str(checkpoint.path))
        missing = [key for key in self._values if key not in data and not has_tag(LOST, values.get(key))]
        missing += [key for key in self._objects if key not in values]
        missing += [key for key in self.saveables if key not in checkpoint.meta["parts"]]
        if missing:
            raise CheckpointError(f"checkpoint {checkpoint.path} has no state for {', '.join(map(repr, missing))}")
        for key, entry in self.saveables.items():
            entry.read(checkpoint.prefix_of(key), checkpoint.meta["parts"][key])
        for key, holder in self._objects.items():
            if not has_tag(LOST, values[key]):
                with taking(f"state[{key!r}]"):
                    holder.load_state_dict(decode(values[key][OBJECT]))
        beside()
        self._put(data)
        for name, variable in mine.items():
            value = saved.pop(name)  # given back at once: a large model must not be in memory three times
            if isinstance(variable, np.ndarray):
                np.copyto(variable, value)
            else:
                variable.assign(value)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put back, at the end, the variables, arrays, objects and plain values that are changed meanwhile."""
        coded = {key: value for key, value in self.values().items() if not has_tag(LOST, value)}
        arrays = {key: np.copy(self._state[key], "K") for key in self._arrays}
        variables = [one for one in self.variables.values() if not isinstance(one, np.ndarray)]
        before = [(copy, tf.identity(copy)) for variable in variables for copy in components(variable)]
        try:
            yield
        finally:
            for copy, value in before:
                copy.assign(value)
            for key, holder in self._objects.items():
                if key in coded:
                    holder.load_state_dict(decode(coded[key][OBJECT]))
            self._put(arrays | {key: decode(coded[key]) for key in self._values if key in coded})

    def _data(self, values: Mapping[str, Any], saved: dict[str, tf.Tensor]) -> dict[str, Any]:
        """Take plain values and arrays out of a checkpoint, also those that are not in the state dict yet.

        Args:
            values: what meta.json holds.
            saved: the variables; arrays that are taken out are removed.
        """
        late = [key for key in values if key not in self._state and not key.startswith(OF_CALLBACKS)]
        found: dict[str, Any] = {}
        for key in (*self._values, *self._arrays, *late):
            coded: Any = values.get(key)
            if key not in values or has_tag(LOST, coded) or has_tag(OBJECT, coded):
                continue
            if not has_tag(STORED, coded):
                with taking(f"state[{key!r}]"):
                    found[key] = decode(coded)
            else:
                name, order = coded[STORED]
                if name in saved:
                    value = np.array(saved.pop(name))
                    found[key] = np.asfortranarray(value) if order == "F" else value
        return found

    def _put(self, data: Mapping[str, Any]) -> None:
        """Put plain values and arrays into the state dict: where it can be, in the objects that are there already."""
        filled: list[Any] = []
        for key, value in data.items():
            old = self._state.get(key)
            if any(old is one for one in filled) or not _fill(old, value):
                self._state[key] = value
                continue
            filled.append(old)


def _order_of(array: np.ndarray[Any, Any]) -> str | None:
    """The order of an array's elements in memory, "C" or "F"; None if it is neither."""
    if array.flags.c_contiguous:
        return "C"
    return "F" if array.flags.f_contiguous else None


def _fill(old: Any, value: Any) -> bool:
    """Give a list, dict or array its content back, which the trainer may also have in an attribute, if that fits."""
    if type(old) is list and type(value) is list:
        old[:] = value
    elif type(old) is dict and type(value) is dict:
        old.clear()
        old.update(value)
    elif isinstance(old, np.ndarray) and isinstance(value, np.ndarray) and old.flags.writeable:
        if (old.dtype, old.shape) != (value.dtype, value.shape):
            return False
        np.copyto(old, value)
    else:
        return False
    return True


def _try_to_save(saveable: Saveable, where: str) -> None:
    with tempfile.TemporaryDirectory(prefix="prototrain-") as scratch:
        try:
            saveable.write(os.path.join(scratch, "trial"))
        except READ_ERRORS as error:
            raise CheckpointError(f"{where} cannot be saved: {first_line(error)}") from error
        if any(map(file_holds_graph, Path(scratch).iterdir())):
            raise CheckpointError(f"{where} cannot be saved: {HOLDS_DATASETS}")


def late_words(names: list[str]) -> str:
    """What is wrong with variables that a step has put into the state, and what to do."""
    shown = ", ".join(map(repr, names[:3])) + ", ..." * (len(names) > 3)
    return f"{shown} came into trainer.state after the run had begun: make it before train(), where a resume finds it"


@contextmanager
def taking(what: str) -> Iterator[None]:
    """Turn what a state of the wrong form makes the code that takes it raise into one clear line.

    Raises:
        CheckpointError: `what` is not as the code that wrote it would have written it.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{what} cannot be taken back: {type(error).__name__}: {first_line(error)}") from error
