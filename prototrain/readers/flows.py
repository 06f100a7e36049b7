"""A reader of tensorpack's DataFlow, or of any iterable of data points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.system.terminal import announcing

PARTS = ("x", "y", "sample_weight")
"""The names of a tuple's parts."""
_LIVE = "is_live_for_prototrain"  # an attribute of the dataset's Python object


def dataflow(
    flow: Iterable[Any],
    *,
    names: Sequence[str] | None = None,
    batched: bool = False,
    spec: Mapping[str, tf.TensorSpec] | None = None,
    live: bool = False,
) -> tf.data.Dataset:
    """Read a tensorpack DataFlow, or any other iterable of data points.

    As in tensorpack, `reset_state()` is called once, if the flow has it, and each pass iterates over the flow again.
    The first data point is read to find the dtypes and shapes, unless `spec` gives them. Create the flow in
    `datasets()` and seed its random generators: a resumed run reads the pass again, or all passes if the flow continues
    its random numbers.

    Live data may come from the run itself, such as from games played with the current model. It is not read before
    training, and a resumed run continues with new data.

    Args:
        flow: an iterable of lists, tuples or dicts of arrays and numbers; each iteration is a new pass.
        names: names of the components of a list or tuple, by default "x", "y" and "sample_weight"; for a dict, the keys
            to use, by default all.
        batched: whether a data point is a batch; the first axis may vary in length.
        spec: the specs of a data point's components by name.
        live: whether the data is new each time it is read; requires `spec`.

    Returns:
        A dataset of dictionaries name -> tensor, with the dtypes and shapes of the first data point or of `spec`, and
        with `len(flow)` elements if the flow has a length.

    Raises:
        DataError: the flow is empty or an iterator, the names do not fit its data points, or it is live without `spec`.
    """
    kind = type(flow).__name__
    if live and spec is None:
        raise DataError(f"{kind} is live, so it cannot be looked at: give spec={{name: tf.TensorSpec}}")
    if not (isinstance(flow, Iterable) or hasattr(flow, "__getitem__")):
        raise DataError(f"a {kind} is not iterable: give a DataFlow, or an iterable of data points")
    if isinstance(flow, Iterator):
        raise DataError(f"a {kind} can be read once only: give what it was made of, or a DataFlow")
    names = list(spec) if names is None and spec is not None else names
    if hasattr(flow, "reset_state"):
        flow.reset_state()
    signature = dict(spec) if spec is not None else _look_at(flow, names, batched)

    def points() -> Iterator[dict[str, Any]]:
        for point in flow:
            named = named_parts(point, names)
            for name, one in signature.items():
                if isinstance(one, tf.TensorSpec):
                    named[name] = _checked(f"{name!r} of {kind}", named.get(name), one)
            yield named

    dataset = tf.data.Dataset.from_generator(points, output_signature=signature)
    setattr(dataset, _LIVE, live)
    try:
        length = len(flow)  # type: ignore[arg-type]
    except (TypeError, ValueError, NotImplementedError):  # no length, or infinite
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(length))


def is_live(stage: Any) -> bool:
    """Return whether a stage of a dataset is a live `dataflow`."""
    return getattr(stage, _LIVE, False) is True


def named_parts(point: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Convert a dict, a tuple or list, or a single array to a dict.

    Args:
        point: the value to convert.
        names: names of the parts; by default all keys of a dict, or `PARTS` for the parts of a tuple that are not None.

    Raises:
        DataError: the names do not fit.
    """
    if isinstance(point, Mapping):
        missing = [name for name in names or () if name not in point]
        if missing:
            raise DataError(f"there is no {missing[0]!r}; a data point has: {', '.join(map(str, point))}")
        return {name: point[name] for name in (point if names is None else names)}
    parts = tuple(point) if isinstance(point, tuple | list) else (point,)
    if len(parts) > len(PARTS) if names is None else len(parts) != len(names):
        expected = f"up to three are {', '.join(PARTS)}" if names is None else f"they are {', '.join(names)}"
        raise DataError(f"a tuple of {len(parts)} does not fit the names: {expected}; give names=[...], or a dict")
    if names is not None:
        return dict(zip(names, parts, strict=True))
    return {key: part for key, part in zip(PARTS, parts, strict=False) if part is not None}


def _look_at(flow: Iterable[Any], names: Sequence[str] | None, batched: bool) -> dict[str, tf.TensorSpec]:
    """Return the specs of a flow's first data point by name."""
    kind = type(flow).__name__
    with announcing(f"waiting for the first data point of {kind} (with spec=... none is read here)"):
        first = next(iter(flow), None)
    if first is None:
        raise DataError(f"{kind} gave no data point")
    found = {}
    for name, value in named_parts(first, names).items():
        array = np.asarray(value)
        found[name] = tf.TensorSpec([None, *array.shape[1:]] if batched else array.shape, _dtype(array))
    return found


def _dtype(array: np.ndarray[Any, Any]) -> tf.DType:
    return tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype)


def _checked(what: str, value: Any, spec: tf.TensorSpec) -> np.ndarray[Any, Any]:
    """Return an array that fits its spec, or raise a DataError."""
    if value is None:
        raise DataError(f"{what} is missing in a data point")
    value = np.asarray(value)
    shape, expected = value.shape, f"data points of {spec.dtype.name} {spec.shape}"
    if not spec.shape.is_compatible_with(shape):
        raise DataError(f"{what} has shape {list(shape)} after {expected}: give spec= with None for sizes that vary")
    return without_loss(f"{what}, after {expected},", value, spec.dtype)


def without_loss(what: str, value: Any, dtype: tf.DType) -> np.ndarray[Any, Any]:
    """Convert a value to an array of a dtype; floats may be rounded.

    Raises:
        DataError: a value would change, such as 0.5 as an integer, which TensorFlow truncates. It begins with `what`.
    """
    array = np.asarray(value)
    try:
        given = tf.as_dtype(array.dtype)  # string for objects and texts
    except TypeError:
        raise DataError(f"{what} is {array.dtype}, not {dtype.name}") from None
    if given == dtype:
        return array
    if tf.string in (given, dtype) or (given.is_complex and not dtype.is_complex):
        raise DataError(f"{what} is {given.name}, not {dtype.name}")
    with np.errstate(all="ignore"):
        found = array.astype(dtype.as_numpy_dtype)
    is_rounded = dtype.is_floating or dtype.is_complex
    changed = np.isfinite(array) & ~np.isfinite(found) if is_rounded else found != array
    if np.any(changed):
        raise DataError(f"{what} has the value {array[changed].flat[0]!s}, which {dtype.name} cannot hold")
    return found
