"""Functions of batches: structure, sizes, parts and digests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import tensorflow as tf

from prototrain.errors import ConfigError, DataError
from prototrain.system.tracebacks import cause
from prototrain.tf_private import scan

WHY_EMPTY = ": has it fewer examples than .batch(..., drop_remainder=True) asks for, or are its files empty?"
"""End of an error message about an empty dataset."""

Batch = dict[str, Any]
Datasets = dict[str, tf.data.Dataset]
_TENSORS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)


def check_dataset(dataset: Any, name: str) -> tf.data.Dataset:
    """Return a dataset if it is not empty and its elements are batches; otherwise raise a DataError.

    A batch is a dict of tensors, or of dicts and tuples of tensors.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise DataError(
            f"datasets() must give a tf.data.Dataset for {name!r}, not {type(dataset).__name__}; arrays, a "
            "keras.utils.PyDataset, a Grain dataset and a DataFlow will do, too"
        )
    spec = dataset.element_spec
    if not isinstance(spec, dict) or not all(isinstance(key, str) for key in spec):
        raise DataError(
            f"each element of dataset {name!r} must be a dict of batched tensors with strings as keys, not {spec}; "
            '.map(lambda x, y: {"x": x, "y": y}) makes one of a tuple'
        )
    parts = by_path(spec)
    for path, one in parts.items():
        if not isinstance(one, _TENSORS):
            raise DataError(f"{path!r} in dataset {name!r} is not a tensor but {one}; convert it in a map()")
    if all(one.shape.rank == 0 for one in parts.values()):
        raise DataError(f"dataset {name!r} gives single examples, not batches: add .batch(model.batch_size)")
    if int(dataset.cardinality()) == 0:
        raise DataError(f"dataset {name!r} is empty{WHY_EMPTY}")
    return dataset


def _inside(structure: Any) -> dict[str, Any]:
    """Return the items of a structure by name or index; empty for a tensor."""
    if isinstance(structure, tuple | list):
        return {str(index): value for index, value in enumerate(structure)}
    return {str(key): value for key, value in structure.items()} if isinstance(structure, Mapping) else {}


def by_path(structure: Any) -> dict[str, Any]:
    """Return the leaves of a batch, or of any structure like it, by path, such as ``image/mask``."""
    found: dict[str, Any] = {}
    for name, value in _inside(structure).items():
        is_leaf = not isinstance(value, Mapping | tuple | list)
        found |= {name: value} if is_leaf else {f"{name}/{path}": one for path, one in by_path(value).items()}
    return found


def at_path(structure: Any, path: str) -> Any:
    """Return the tensor or part of a batch at a path; raises a KeyError if there is none."""
    inside = _inside(structure)
    if path in inside:  # a name may contain a slash
        return inside[path]
    name, _, rest = path.partition("/")
    if name not in inside or not rest:
        raise KeyError(path)
    return at_path(inside[name], rest)


def has_path(structure: Any, path: str) -> bool:
    """Return whether a batch has a tensor or part at a path."""
    try:
        at_path(structure, path)
    except KeyError:
        return False
    return True


def from_paths(values: Mapping[str, Any], like: Any) -> Batch:
    """Return a batch, or part of one, made from values by name or path; raises a KeyError if a tuple is incomplete.

    `like` is a batch or spec that determines which names are paths; None if all are names.
    """
    inside = _inside(like)
    found: Batch = {}
    deeper: dict[str, Batch] = {}
    for path, value in values.items():
        name, slash, rest = path.partition("/")
        if slash and path not in inside and name in inside:
            deeper.setdefault(name, {})[rest] = value
        else:
            found[path] = value
    for name, rests in deeper.items():
        part = from_paths(rests, inside[name])
        is_dict = isinstance(inside[name], Mapping)
        found[name] = part if is_dict else tuple(part[str(index)] for index in range(len(inside[name])))
    return found


def first_dimensions(inputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Return the first dimensions of a batch's tensors by path, without scalars."""
    return {path: _length(value) for path, value in by_path(inputs).items() if value.shape.rank != 0}


def _length(value: Any) -> tf.Tensor:
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    if isinstance(value, tf.RaggedTensor):
        return value.nrows()
    static = value.shape[0] if value.shape.rank else None
    return tf.shape(value)[0] if static is None else tf.constant(static)


def batch_size(inputs: Mapping[str, Any]) -> tf.Tensor:
    """Return the number of examples in a batch: the first dimension of its first tensor that is not a scalar."""
    for size in first_dimensions(inputs).values():
        return size
    raise DataError("a batch has no dimension of examples, only scalars: the dataset must be batched, with .batch(...)")


def counted_examples(inputs: Mapping[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the number of examples in a batch (int64), and whether the tensors' first dimensions agree (bool)."""
    size = tf.cast(batch_size(inputs), tf.int64)
    sizes = [tf.cast(each, tf.int64) for each in first_dimensions(inputs).values()]
    return size, tf.reduce_all(tf.stack(sizes) == size)


def describe_length(dataset: tf.data.Dataset) -> str:
    """Return the length of a dataset as text, in examples if the batch size is static, otherwise in batches."""
    batches = int(dataset.cardinality())
    if batches < 0:
        return "without an end" if batches == tf.data.INFINITE_CARDINALITY else "of unknown length"
    sizes = {spec.shape[0] for spec in tf.nest.flatten(dataset.element_spec) if spec.shape.rank}
    if len(sizes) == 1 and None not in sizes:
        return f"{batches * sizes.pop():,} examples"
    return "1 batch" if batches == 1 else f"{batches:,} batches"


def check_divides(batch_size: int, towers: int, micro_batches: int) -> None:
    """Check that ``model.batch_size`` divides evenly into towers and micro-batches; raises a ConfigError if not."""
    if batch_size % (towers * micro_batches):
        parts = [f"{towers} towers"] * (towers > 1) + [f"{micro_batches} micro-batches"] * (micro_batches > 1)
        nearest = -(-batch_size // (towers * micro_batches)) * towers * micro_batches
        raise ConfigError(
            f"model.batch_size: {batch_size} examples do not divide evenly into {' of '.join(parts)}; {nearest} would"
        )


def split_batch(inputs: Batch, parts: int) -> list[Batch]:
    """Split every tensor of a batch evenly along its first dimension; scalars go to every part. Traced or eager.

    Raises:
        DataError: the static first dimensions of the tensors differ, or are no multiple of `parts`. Others are compared
            when the batch is split.
    """
    if parts == 1:
        return [inputs]
    sizes = first_dimensions(inputs)
    known = [tf.get_static_value(size) for size in sizes.values()]
    message = (
        f"a batch does not divide into {parts} equal parts: use .batch(..., drop_remainder=True), or one tower and no "
        f"micro-batches; the rows of {', '.join(sizes)} are"
    )
    if all(rows is not None for rows in known):
        if len({int(rows) for rows in known}) > 1 or any(rows % parts for rows in known):
            raise DataError(f"{message} {', '.join(map(str, known))}")
    else:
        rows = tf.stack([tf.cast(size, tf.int64) for size in sizes.values()])
        check = tf.debugging.Assert(tf.reduce_all((rows == rows[0]) & (rows % parts == 0)), [message, rows])
        with tf.control_dependencies([check]):
            inputs = tf.nest.map_structure(tf.identity, inputs, expand_composites=True)
    divided = [_split(value, parts) for value in tf.nest.flatten(inputs)]
    return [tf.nest.pack_sequence_as(inputs, [values[index] for values in divided]) for index in range(parts)]


def _split(value: Any, parts: int) -> list[Any]:
    if value.shape.rank == 0:
        return [value] * parts
    if not isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
        return list(tf.split(value, parts))
    size = _length(value) // parts
    return [_rows(value, index * size, size) for index in range(parts)]


def _rows(value: Any, begin: Any, size: Any) -> Any:
    """Return `size` rows of a tensor."""
    if not isinstance(value, tf.SparseTensor):
        return value[begin : begin + size]
    rest = value.dense_shape[1:]
    return tf.sparse.slice(value, tf.concat([[begin], tf.zeros_like(rest)], 0), tf.concat([[size], rest], 0))


def first_part(inputs: Batch, parts: int) -> Batch:
    """Return the first of `parts` parts of a batch, with at least one example."""

    def first(value: Any) -> Any:
        if value.shape.rank == 0 or parts == 1:
            return value
        length = _length(value)
        return _rows(value, tf.zeros_like(length), tf.maximum(length // parts, 1))

    found: Batch = tf.nest.map_structure(first, inputs)
    return found


def limited(make: Callable[[], Datasets], *, limit: int | None, overfit: int | None) -> Callable[[], Datasets]:
    """Wrap a model's `datasets` to return at most `limit` batches, or the first `overfit` training batches for all."""
    kept: list[tf.data.Dataset] = []

    def datasets() -> Datasets:
        found = make()
        if overfit is not None and isinstance(found, dict) and "trn" in found:
            if not kept:
                batches = [tf.data.Dataset.from_tensors(batch) for batch in found["trn"].take(overfit)]
                kept.append(reduce(lambda one, other: one.concatenate(other), batches or [found["trn"]]))
            return dict.fromkeys(found, kept[0])
        return {name: dataset.take(limit) for name, dataset in found.items()}

    return make if limit is None and overfit is None else datasets


def first_batch(iterator: Any) -> Batch:
    """Read one batch of the training dataset; raises a DataError if it is empty or reading fails."""
    try:
        for batch in iterator:
            return dict(batch)
    except tf.errors.OpError as error:
        raise DataError(f"reading the training dataset 'trn' failed: {cause(error)}") from error
    raise DataError(f"the training dataset 'trn' is empty{WHY_EMPTY}")


def batch_of_zeros(spec: Mapping[str, Any], batch_size: int) -> Batch:
    """Return a batch of zeros for building a model without data; unknown dimensions after the first are 1."""

    def zeros(spec: Any) -> tf.Tensor:
        if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
            raise DataError(f"live data must be of dense tensors with known ranks; {spec} is none")
        shape = [size if size is not None else 1 if axis else batch_size for axis, size in enumerate(spec.shape)]
        return tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)

    return dict(tf.nest.map_structure(zeros, dict(spec)))


_KEPT_DIGESTS = 1024  # more than the batches that are ever prefetched


class RollingDigest:
    """A digest over the batches read in a pass; the pipeline updates it with each batch."""

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("CPU:0"):
            self._digests = tf.Variable(tf.zeros([_KEPT_DIGESTS], tf.int64), trainable=False)

    def over(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Return a dataset with the same batches that also computes the digest after each batch."""

        def leave_digest(state: tuple[Any, Any], batch: Any) -> tuple[tuple[Any, Any], Any]:
            number, before = state
            number, digest = number + 1, _roll(batch, before)
            self._digests.scatter_nd_update([[number % _KEPT_DIGESTS]], [digest])
            return (number, digest), batch

        first = tf.constant(0, tf.int64), tf.constant(0, tf.int64)
        return scan(dataset, first, tf.autograph.experimental.do_not_convert(leave_digest))

    def after(self, batches: int) -> str:
        """Return the digest of the first `batches` batches of the pass; only the newest 1,024 digests are stored."""
        return _text(self._digests[batches % _KEPT_DIGESTS] if batches else 0)


def digest_of(batch: Any) -> str:
    """Return the digest of one batch."""
    return _text(_roll(batch, tf.constant(0, tf.int64)))


def _roll(batch: Any, before: tf.Tensor) -> tf.Tensor:
    """Return the digest of a batch and the batches before it, an int64 scalar; traced or eager."""
    tensors = [tensor for tensor in tf.nest.flatten(batch, expand_composites=True) if tensor.dtype != tf.variant]
    pieces = [tf.bitcast(before, tf.uint8), *(tf.fingerprint(_as_row(tensor))[0] for tensor in tensors)]
    return tf.bitcast(tf.fingerprint(_as_row(tf.concat(pieces, 0)))[0], tf.int64)


def _as_row(tensor: tf.Tensor) -> tf.Tensor:
    plain = tf.cast(tensor, tf.uint8) if tensor.dtype == tf.bool else tensor
    return tf.reshape(plain, [1, -1])


def _text(digest: Any) -> str:
    return f"{int(digest) % 2**64:016x}"
