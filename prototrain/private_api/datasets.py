"""tf.data: what a dataset is made of, and the state of an iterator.

TensorFlow has no public way to ask what a dataset is made of, except as a graph with all its data in it.
"""

from __future__ import annotations

import mmap
import re
from typing import Any

import tensorflow as tf

from prototrain.private_api.needs import has, needs

_DATASETS = "tensorflow.python.data.ops"
_ITERATOR = f"{_DATASETS}.iterator_ops:OwnedIterator"
_ADDRESSES = ("_variant_tensor_attr", "_address", "_dataset_id")  # of this process, or of a service
_GENERATOR = b"@@epoch_num_random_samples"  # what TensorFlow calls a part of a shuffle's state
_NAME = re.compile(rb"Iterator::[\w:\[\]]+")
_STATE = "_STATE"


def _not_savable(iterator: Any, *_: Any) -> Any:
    raise tf.errors.UnimplementedError(None, None, f"TensorFlow {tf.__version__} has no way to save an iterator")


@needs(
    f"{_ITERATOR}._serialize_to_tensors",
    f"{_ITERATOR}._restore_from_tensors",
    without="a resumed run comes back to its place in the data by reading it again",
    instead=_not_savable,
)
def iterator_state(iterator: Any) -> tf.Tensor:
    """An iterator's state, which does not move on with it; a vector of variants.

    It relies on an iterator being a saveable of TensorFlow's checkpoints, whose state has one tensor.

    Raises:
        tf.errors.OpError: it cannot be saved.
    """
    return iterator._serialize_to_tensors()[_STATE]


@needs(
    f"{_ITERATOR}._restore_from_tensors",
    without="a checkpoint's place in the data is come back to by reading it again",
    instead=_not_savable,
)
def set_iterator_state(iterator: Any, state: tf.Tensor) -> None:
    """Bring an iterator of the same dataset to a state that `iterator_state` has given.

    Raises:
        tf.errors.OpError: it is not of such an iterator.
    """
    iterator._restore_from_tensors({_STATE: state})


def iterator_handle(iterator: Any) -> tf.Tensor:
    """TensorFlow's handle of an iterator. It relies on that being all that an iterator consists of as a composite."""
    (handle,) = tf.nest.flatten(iterator, expand_composites=True)
    return handle


def next_synchronously(iterator: Any) -> Any:
    """Read the next element of an iterator in the calling thread; traced.

    TensorFlow's `next` hands each read to another thread, which costs more than a small batch. Reading in the calling
    thread is safe where a prefetch stage makes the elements. Elements with other parts than dense tensors are read by
    `next`.
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
    """Whether a state that was written holds the random generator of a shuffle.

    It relies on the names that TensorFlow gives to the parts of a state. Under others, every state counts as one that
    does not hold it, and a resumed run reads from the last state on which did.

    Args:
        content: the bytes of a state.
    """
    at = content.find(_GENERATOR)
    while at >= 0:
        if _NAME.fullmatch(bytes(content[content.rfind(b"Iterator::", 0, at) : at])):  # and not in an example
            return True
        at = content.find(_GENERATOR, at + 1)
    return False


# -- stages -----------------------------------------------------------------------------------------------------------


def stage_name(stage: Any) -> str:
    """The name of a stage's class, such as ``_ParallelMap``; the underscore tells some of them apart.

    The table of `prototrain.data.rule` relies on these names. Data with a stage that is not in it is replayed.
    """
    return type(stage).__name__.removesuffix("V2").removesuffix("Dataset")


def tells_stages() -> bool:
    """Whether it can be known what a dataset is made of."""
    return has("stage_inputs") and has("stage_functions") and has("called_function") and has("nested_functions")


@needs(
    f"{_DATASETS}.dataset_ops:DatasetV2._inputs",
    without="the stages of a dataset are not known, and a resumed run reads its data again up to its place",
    instead=lambda stage: [],
)
def stage_inputs(stage: Any) -> list[Any]:
    """The datasets that a stage reads from. It relies on `_inputs`."""
    return list(stage._inputs())


def stood_for(stage: Any) -> Any:
    """The dataset that a reader stands for and keeps to itself, or None. It relies on `_impl`."""
    return getattr(stage, "_impl", None)


@needs(
    f"{_DATASETS}.dataset_ops:DatasetV2._functions",
    without="the functions of a dataset are not known, and a resumed run reads its data again up to its place",
    instead=lambda stage: [],
)
def stage_functions(stage: Any) -> list[Any]:
    """The concrete functions that a stage calls.

    It relies on `_functions`, whose items have one each, and on the `_reader_func` of `Dataset.load`, which is not
    among them.
    """
    functions = stage._functions() or [getattr(stage, "_reader_func", None)]
    return [function.function for function in functions if function is not None]


@needs(
    f"{_DATASETS}.load_op:_LoadDataset._path",
    f"{_DATASETS}.load_op:_LoadDataset._reader_func",
    without="what Dataset.load() reads, and how, is not compared with what it was",
    instead=lambda stage: None,
)
def saved_in(stage: Any) -> str | None:
    """The directory that `Dataset.load` reads; None of any other stage. It relies on `_path`."""
    return str(getattr(stage, "_path", "")) if stage_name(stage) == "_Load" else None


def stage_settings(stage: Any) -> dict[str, Any]:
    """What a stage was given, by the names of its object's attributes, without addresses of this process."""
    return {name: value for name, value in vars(stage).items() if name not in _ADDRESSES}


@needs(
    f"{_DATASETS}.shuffle_op:_ShuffleDataset._seed",
    f"{_DATASETS}.shuffle_op:_ShuffleDataset._seed2",
    f"{_DATASETS}.random_op:_RandomDataset._seed",
    f"{_DATASETS}.random_op:_RandomDataset._seed2",
    without="whether a dataset is shuffled with a seed is not known, and one that is shuffled is not come back to",
    instead=lambda stage: False,
)
def is_seeded(stage: Any) -> bool:
    """Whether a shuffle or a stage of random numbers has a seed: of the two, TensorFlow makes (0, 0) where not."""
    return bool(int(stage._seed) or int(stage._seed2))


@needs(
    f"{_DATASETS}.shuffle_op:_ShuffleDataset._reshuffle_each_iteration",
    f"{_DATASETS}.random_op:_RandomDataset._rerandomize",
    without="a shuffle counts as one that gives each pass another order",
    instead=lambda stage: True,
)
def has_each_pass_anew(stage: Any) -> bool:
    """Whether a shuffle gives each pass another order, or a stage of random numbers other numbers.

    The arguments `reshuffle_each_iteration`, by default True, and `rerandomize_each_iteration`, by default False.
    """
    if hasattr(stage, "_rerandomize"):
        return bool(stage._rerandomize)
    return getattr(stage, "_reshuffle_each_iteration", None) is not False


@needs(
    f"{_DATASETS}.map_op:_ParallelMapDataset._deterministic",
    f"{_DATASETS}.batch_op:_ParallelBatchDataset._deterministic",
    without="a parallel stage counts as one that may give another order (deterministic=False)",
    instead=lambda stage: stage_name(stage) in ("_ParallelMap", "_ParallelBatch"),
)
def is_declared_unordered(stage: Any) -> bool:
    """Whether a parallel stage was made with ``deterministic=False``, which it keeps as a text."""
    return bool(getattr(stage, "_deterministic", "") == "false")


@needs(
    f"{_DATASETS}.cache_op:CacheDataset._filename",
    without="whether a cache is in a file is not known, and a resumed run reads its data again up to its place",
    instead=lambda stage: None,
)
def cache_file(stage: Any) -> Any:
    """The tensor of the file name that `cache(filename)` was given, empty for one in memory; None if not known."""
    return stage._filename


@needs(
    "tensorflow.python.data.util.options:OptionsBase._options",
    without="which options a dataset has is not known, and a resumed run reads its data again up to its place",
    instead=lambda options: {"(not known)": True},
)
def set_options(options: tf.data.Options) -> dict[str, Any]:
    """The options that were set, by name. It relies on `_options`, in which those of a group are options again."""
    default = tf.data.Options()
    return {
        name: value
        for name, value in options._options.items()
        if value is not None and value != getattr(default, name, None) and getattr(value, "_options", True)
    }


def stage_number(stage: Any, name: str) -> int | None:
    """A number that a stage was given, such as the "batch_size" of a batch; None if it is not known.

    It relies on the attributes `_batch_size` and `_drop_remainder` of the stages that make batches, and `_count` of one
    that repeats. Without them a place in data that is shuffled by index is come back to by reading again.
    """
    tensor = getattr(stage, f"_{name}", None)
    value = None if tensor is None else tf.get_static_value(tensor)
    return None if value is None else int(value)


def _cannot_divide(dataset: Any, count: int, index: int) -> Any:
    raise tf.errors.UnimplementedError(
        None, None, f"TensorFlow {tf.__version__} has no way to divide a dataset by files"
    )


@needs(
    "tensorflow.python.data.experimental.ops.distribute:_AutoShardDataset",
    without='model.data_sharding cannot be "files"',
    instead=_cannot_divide,
)
def divided_by_files(dataset: tf.data.Dataset, count: int, index: int) -> tf.data.Dataset:
    """A worker's part of a dataset, as its options say; what strategies do to their own datasets.

    Raises:
        tf.errors.NotFoundError: it does not come from files.
    """
    from tensorflow.python.data.experimental.ops import distribute

    part: tf.data.Dataset = distribute._AutoShardDataset(dataset, count, index)
    return part
