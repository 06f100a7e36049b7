"""Examples that Python code gives one by one: a DataFlow of tensorpack's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.system.waiting import announcing

_LIVE = "is_live_for_prototrain"  # on the Python object of a dataset


def dataflow(
    flow: Iterable[Any],
    *,
    names: Sequence[str] | None = None,
    batched: bool = False,
    spec: Mapping[str, tf.TensorSpec] | None = None,
    live: bool = False,
) -> tf.data.Dataset:
    """Reads a DataFlow of tensorpack's, or whatever gives one data point after the other.

    Its `reset_state()` is called once, now, if it has one, as tensorpack does: each pass iterates over the flow again.
    Its first data point is read to see what it is like, unless `spec` tells it. Make the flow within `datasets()`, from
    seeds. A resumed run reads the pass again from its start; the run prints a WARNING if a flow whose generator was
    not at its start in that pass gives other batches then. A flow that draws its order in `__iter__`, from a seed, or
    `Dataset.shuffle` behind it, is resumed as it was.

    What a flow gives may also come from the run itself, such as from games that are played with the model as it is
    (``live=True``). Then nothing of it is read before it is trained on, so that it may wait for its callback's
    `before_train`, and a resumed run continues with what it gives then.

    Args:
        flow: gives lists, tuples or dicts of arrays and numbers; each iteration is a new pass.
        names: of the components of a list or tuple; of a dict, those that are taken, by default all.
        batched: whether a data point is a batch, whose first axis may have another length in another one.
        spec: what a data point looks like, by name; then the first one is not read for that.
        live: whether it gives something else each time; needs `spec`.

    Returns:
        A dataset of dictionaries name -> tensor, of the dtypes and shapes of the first data point. It has `len(flow)`
        elements, if the flow has a length.

    Raises:
        DataError: the flow is empty or can be read once only, the names do not fit its data points, or it is live and
            has no `spec`.
    """
    kind = type(flow).__name__
    if live and spec is None:
        raise DataError(
            f"{kind} is live, so it cannot be looked at: say what it gives with spec={{name: tf.TensorSpec}}"
        )
    if isinstance(flow, Iterator):
        raise DataError(f"a {kind} can be read once only: give what it was made of, or a DataFlow")
    names = list(spec) if names is None and spec is not None else names
    if hasattr(flow, "reset_state"):
        flow.reset_state()

    signature = dict(spec) if spec is not None else _look_at(flow, names, batched)

    def points() -> Iterator[dict[str, Any]]:
        for point in flow:
            named = _named(point, names, kind)
            for name, one in signature.items():
                if isinstance(one, tf.TensorSpec):
                    _check(name, named.get(name), one, kind)
            yield named

    dataset = tf.data.Dataset.from_generator(points, output_signature=signature)
    setattr(dataset, _LIVE, live)
    try:
        length = len(flow)  # type: ignore[arg-type]
    except (TypeError, ValueError, NotImplementedError):  # it has none, or no end
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(length))


def is_live(stage: Any) -> bool:
    """Whether a stage of a dataset is a `dataflow` that is live."""
    return getattr(stage, _LIVE, False) is True


def _look_at(flow: Iterable[Any], names: Sequence[str] | None, batched: bool) -> dict[str, tf.TensorSpec]:
    """What the data points of a flow are like, from the first one."""
    kind = type(flow).__name__
    with announcing(f"waiting for the first data point of {kind} (with spec=... none is read here)"):
        first = next(iter(flow), None)
    if first is None:
        raise DataError(f"{kind} gave no data point")

    def spec(name: str, value: Any) -> tf.TensorSpec:
        array = np.asarray(value)
        if batched and not array.shape:
            raise DataError(f"{name!r} of {kind} is a number, and with batched=True it must have an axis")
        shape = [None, *array.shape[1:]] if batched else array.shape
        return tf.TensorSpec(shape, tf.string if array.dtype.kind in "OSU" else array.dtype)

    return {name: spec(name, value) for name, value in _named(first, names, kind).items()}


def _check(name: str, value: Any, spec: tf.TensorSpec, flow: str) -> None:
    """Refuse a value of another shape or kind than the first one: TensorFlow would cut 0.5 to 0 for an integer."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    found = tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype)
    fits = found == spec.dtype or np.can_cast(array.dtype, spec.dtype.as_numpy_dtype, "same_kind")
    if not fits or not spec.shape.is_compatible_with(array.shape):
        shape = spec.shape.most_specific_compatible_shape(array.shape)
        dtype = spec.dtype if fits else found
        cure = f"{name!r}: tf.TensorSpec({shape.as_list() if shape.rank is not None else None}, tf.{dtype.name})"
        raise DataError(
            f"{name!r} of {flow} is {found.name} {list(array.shape)} after data points of {spec.dtype.name} "
            f"{spec.shape}: give spec={{{cure}, ...}}"
        )


def _named(point: Any, names: Sequence[str] | None, flow: str) -> dict[str, Any]:
    if isinstance(point, Mapping):
        missing = [name for name in names or () if name not in point]
        if missing:
            raise DataError(f"{flow} has no {missing[0]!r}; a data point has: {', '.join(map(str, point))}")
        return {name: point[name] for name in names} if names is not None else dict(point)
    if not isinstance(point, list | tuple):
        raise DataError(f"{flow} must give lists, tuples or dicts; it gave a {type(point).__name__}")
    if names is None or len(names) != len(point):
        given = "no names" if names is None else f"{len(names)} names"
        raise DataError(f"{flow} gives data points of {len(point)} components, and there are {given}: give names=[...]")
    return dict(zip(names, point, strict=True))
