"""tf.data: the stages of a dataset, and the state of an iterator."""

from __future__ import annotations

import mmap
import re
from typing import Any

import tensorflow as tf

from prototrain.private_api import private

_ADDRESSES = ("_variant_tensor_attr", "_address", "_dataset_id")  # of this process, or of a service
_GENERATOR = b"@@epoch_num_random_samples"  # what TensorFlow calls a part of a shuffle's state
_NAME = re.compile(rb"Iterator::[\w:\[\]]+")
_STATE = "_STATE"


@private
def iterator_state(iterator: Any) -> tf.Tensor:
    """A copy of an iterator's state: a vector of variants.

    Raises:
        tf.errors.OpError: it cannot be saved.
    """
    return iterator._serialize_to_tensors()[_STATE]


@private
def set_iterator_state(iterator: Any, state: tf.Tensor) -> None:
    """Restore the state of an iterator of the same dataset.

    Raises:
        tf.errors.OpError: the state is of another iterator.
    """
    iterator._restore_from_tensors({_STATE: state})


def iterator_handle(iterator: Any) -> tf.Tensor:
    """The resource tensor of an iterator: the only component of its composite tensor."""
    (handle,) = tf.nest.flatten(iterator, expand_composites=True)
    return handle


def next_synchronously(iterator: Any) -> Any:
    """Read the next element of an iterator in the calling thread; traced.

    `next` reads in another thread, which takes longer than a small batch. The dataset must end with a prefetch stage.
    Elements that are not all dense tensors are read by `next`.
    """
    spec = iterator.element_spec
    parts = tf.nest.flatten(spec)
    if not all(isinstance(part, tf.TensorSpec) for part in parts):
        return next(iterator)
    read = tf.raw_ops.IteratorGetNextSync(
        iterator=iterator_handle(iterator),
        output_types=[part.dtype for part in parts],
        output_shapes=[part.shape for part in parts],
    )
    return tf.nest.pack_sequence_as(spec, read)


def holds_generator(content: bytes | mmap.mmap) -> bool:
    """Whether the saved state of an iterator contains the random generator of a shuffle.

    If TensorFlow names it otherwise, no state does, and a resumed run reads from the last state that did.

    Args:
        content: the bytes of the file.
    """
    at = content.find(_GENERATOR)
    while at >= 0:
        if _NAME.fullmatch(bytes(content[content.rfind(b"Iterator::", 0, at) : at])):  # not in an example
            return True
        at = content.find(_GENERATOR, at + 1)
    return False


# -- stages -----------------------------------------------------------------------------------------------------------


def stage_name(stage: Any) -> str:
    """The name of a stage's class, such as ``_ParallelMap``.

    The table in `prototrain.data.rule` has these names; data with any other stage is replayed.
    """
    return type(stage).__name__.removesuffix("V2").removesuffix("Dataset")


@private
def stage_inputs(stage: Any) -> list[Any]:
    """The datasets that a stage reads from."""
    return list(stage._inputs())


def stood_for(stage: Any) -> Any:
    """The dataset that a reader wraps, or None."""
    return getattr(stage, "_impl", None)


@private
def stage_functions(stage: Any) -> list[Any]:
    """The concrete functions that a stage calls; `Dataset.load` has one that is not among its `_functions`."""
    functions = stage._functions() or [getattr(stage, "_reader_func", None)]
    return [function.function for function in functions if function is not None]


@private
def saved_in(stage: Any) -> str | None:
    """The directory that `Dataset.load` reads; None for any other stage."""
    return str(stage._path) if stage_name(stage) == "_Load" else None


def stage_settings(stage: Any) -> dict[str, Any]:
    """The attributes of a stage, without addresses of this process."""
    return {name: value for name, value in vars(stage).items() if name not in _ADDRESSES}


@private
def is_seeded(stage: Any) -> bool:
    """Whether a shuffle or a stage of random numbers has a seed; without one, TensorFlow sets both to 0."""
    return bool(int(stage._seed) or int(stage._seed2))


def has_each_pass_anew(stage: Any) -> bool:
    """Whether each pass has another order or other random numbers.

    The arguments `reshuffle_each_iteration`, by default True, and `rerandomize_each_iteration`, by default False.
    """
    if hasattr(stage, "_rerandomize"):
        return bool(stage._rerandomize)
    return getattr(stage, "_reshuffle_each_iteration", None) is not False


@private
def is_declared_unordered(stage: Any) -> bool:
    """Whether a parallel stage was made with ``deterministic=False``."""
    if stage_name(stage) in ("_ParallelMap", "_ParallelBatch"):
        return bool(stage._deterministic == "false")
    return bool(getattr(stage, "_deterministic", "") == "false")


@private
def cache_file(stage: Any) -> Any:
    """The tensor of the file name of `cache(filename)`, empty for a cache in memory."""
    return stage._filename


@private
def set_options(options: tf.data.Options) -> dict[str, Any]:
    """The options that were set, by name; a group of options is one of them."""
    default = tf.data.Options()
    return {
        name: value
        for name, value in options._options.items()
        if value is not None and value != getattr(default, name, None) and getattr(value, "_options", True)
    }


def stage_number(stage: Any, name: str) -> int | None:
    """A number that a stage was given: "batch_size", "drop_remainder" or "count"; None if it is not known."""
    tensor = getattr(stage, f"_{name}", None)
    value = None if tensor is None else tf.get_static_value(tensor)
    return None if value is None else int(value)


@private
def divided_by_files(dataset: tf.data.Dataset, count: int, index: int) -> tf.data.Dataset:
    """A worker's part of a dataset, divided by its `auto_shard_policy`.

    Raises:
        tf.errors.NotFoundError: the dataset does not read files.
    """
    from tensorflow.python.data.experimental.ops import distribute

    part: tf.data.Dataset = distribute._AutoShardDataset(dataset, count, index)
    return part
