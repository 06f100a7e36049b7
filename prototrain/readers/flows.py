"""A reader of tensorpack's DataFlow, or of any iterable of data points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.system.terminal import announcing

PARTS = ("x", "y", "sample_weight")
"""The names of a tuple's parts."""
_LOOKED_AT = 2  # data points, to detect which dimensions vary
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
    The first two data points are read to find the dtypes and shapes, unless `spec` gives them. Create the flow in
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
        A dataset of dictionaries name -> tensor, with the dtypes and shapes of the first data points or of `spec`,
        and with `len(flow)` elements if the flow has a length.

    Raises:
        DataError: the flow is empty or an iterator, the names do not fit its data points, or it is live without `spec`.
    """
    kind = type(flow).__name__
    if live and spec is None:
        raise DataError(f"{kind} is live, so it cannot be looked at: give spec={{name: tf.TensorSpec}}")
    if isinstance(flow, Iterator):
        raise DataError(f"a {kind} can be read once only: give what it was made of, or a DataFlow")
    if hasattr(flow, "reset_state"):
        flow.reset_state()
    names = list(spec) if names is None and spec is not None else names

    def named(point: Any) -> dict[str, Any]:
        parts = named_parts(point, names)
        as_is = {name for name, one in (spec or {}).items() if not isinstance(one, tf.TensorSpec)}  # a nested structure
        return {
            name: np.asarray(part) if isinstance(part, list | tuple) and name not in as_is else part
            for name, part in parts.items()
        }

    with announcing(f"waiting for the first data points of {kind} (with spec=... none are read here)"):
        dataset = dataset_of_points(
            lambda: map(named, flow),
            f"a data point of {kind}",
            batched=batched,
            signature=None if spec is None else dict(spec),
        )
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


def dataset_of_points(
    points: Callable[[], Iterator[Any]], what: str, *, batched: bool, signature: Any = None
) -> tf.data.Dataset:
    """Return a dataset of the data points that Python code makes, which are nested structures of arrays and numbers.

    Args:
        points: called for each pass.
        what: begins error messages, such as "a data point of Flow".
        batched: whether the first axis of all arrays may vary in length.
        signature: the specs of a data point; None for those of the first two, with None for sizes that differ.

    Raises:
        DataError: there is no data point, or the first two are not alike.
    """
    if signature is None:
        specs = [keras.tree.map_structure(partial(_spec, batched), point) for point in islice(points(), _LOOKED_AT)]
        if not specs:
            raise DataError(f"the data is empty: there is not even {what}")
        signature = keras.tree.map_structure(_common, *specs)

    def converted() -> Iterator[Any]:  # TensorFlow would truncate floats after integers
        return (keras.tree.map_structure(partial(_convert, what), signature, point) for point in points())

    return tf.data.Dataset.from_generator(converted, output_signature=signature)


def _spec(batched: bool, value: Any) -> tf.TypeSpec:
    spec = tf.type_spec_from_value(value if tf.is_tensor(value) else tf.convert_to_tensor(np.asarray(value)))
    is_dense = isinstance(spec, tf.TensorSpec) and spec.shape.rank
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if batched and is_dense else spec


def _common(*specs: tf.TypeSpec) -> Any:
    found = specs[0].most_specific_common_supertype(specs[1:])
    if found is None or (isinstance(found, tf.TensorSpec) and found.shape.rank is None):
        raise DataError(f"the first data points are not alike: {' and '.join(map(str, specs))}; give spec=")
    return found


def _convert(what: str, spec: tf.TypeSpec, value: Any) -> Any:
    if not isinstance(spec, tf.TensorSpec) or (tf.is_tensor(value) and value.dtype == spec.dtype):
        return value
    return without_loss(what, value, spec.dtype)


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
