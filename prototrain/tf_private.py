"""Wrappers around the private APIs of TensorFlow and Keras that prototrain uses.

No other module uses private APIs. `tests/test_tf_private.py` has a test for each function, which fails if a new version
of TensorFlow or Keras is incompatible.
"""

from __future__ import annotations

import mmap
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope as in_stateless_scope
from keras.src.models.functional import Functional as Functional  # the class of `keras.Model(inputs, outputs)`
from keras.src.random import seed_generator
from keras.src.utils import rng_utils
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.eager import context
from tensorflow.python.feature_column.feature_column_v2 import FeatureTransformationCache as FeatureTransformationCache
from tensorflow.python.framework.config import is_op_determinism_enabled as is_op_determinism_enabled
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable
from tensorflow.python.util import deprecation

from prototrain.errors import ConfigError

Trackable = tf.__internal__.tracking.Trackable  # the base class of all objects that `tf.train.Checkpoint` can save

_ADDRESSES = ("_variant_tensor_attr", "_address", "_dataset_id")  # specific to a process or service
_GENERATOR = b"@@epoch_num_random_samples"  # a key in the state of a shuffle's random generator
_NAME = re.compile(rb"Iterator::[\w:\[\]]+")


def iterator_state(iterator: Any) -> tf.Tensor:
    """Return a copy of an iterator's state, a vector of variants; raises `tf.errors.OpError` if it cannot be saved."""
    return iterator._serialize_to_tensors()["_STATE"]


def set_iterator_state(iterator: Any, state: tf.Tensor) -> None:
    """Restore the state of an iterator; raises `tf.errors.OpError` if it belongs to another dataset."""
    iterator._restore_from_tensors({"_STATE": state})


def iterator_handle(iterator: Any) -> tf.Tensor:
    """Return the resource tensor of an iterator."""
    (handle,) = tf.nest.flatten(iterator, expand_composites=True)
    return handle


def next_synchronously(iterator: Any) -> Any:
    """Read the next element of an iterator that ends with a prefetch stage, in the calling thread. Traced.

    `next` reads in another thread, which takes longer, and is used for elements that are not dense tensors.
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
    """Return whether the saved state of an iterator, as the bytes of a file, contains a shuffle's random generator."""
    at = content.find(_GENERATOR)
    while at >= 0:
        if _NAME.fullmatch(bytes(content[content.rfind(b"Iterator::", 0, at) : at])):  # not in an example
            return True
        at = content.find(_GENERATOR, at + 1)
    return False


@contextmanager
def taking_python_functions() -> Iterator[list[Any]]:
    """Yield a list of the Python functions in the datasets that are made inside, to be kept as long as the datasets.

    Otherwise TensorFlow keeps them, with everything that they refer to, as long as the process lives.
    """
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_py_funcs_used_in_graph"):
        graph._py_funcs_used_in_graph = []
    kept = graph._py_funcs_used_in_graph
    before = len(kept)
    found: list[Any] = []
    try:
        yield found
    finally:
        found += kept[before:]
        del kept[before:]


def scan(dataset: tf.data.Dataset, initial_state: Any, function: Callable[..., Any]) -> tf.data.Dataset:
    """Return `dataset.scan`, without leaving its function in the default graph, where it would stay for ever."""
    scanned = dataset.scan(initial_state, function)
    if tf.executing_eagerly():
        tf.compat.v1.get_default_graph()._remove_function(scanned._scan_func.function.name)
    return scanned


def stage_name(stage: Any) -> str:
    """Return the name of a stage's class, such as ``_ParallelMap``; `prototrain.data.pipeline` lists the known ones."""
    return type(stage).__name__.removesuffix("V2").removesuffix("Dataset")


def stage_inputs(stage: Any) -> list[Any]:
    """Return the datasets that a stage reads from."""
    return list(stage._inputs())


def wrapped_dataset(stage: Any) -> Any:
    """Return the dataset that a reader wraps, or None."""
    return getattr(stage, "_impl", None)


def stage_functions(stage: Any) -> list[Any]:
    """Return the concrete functions that a stage calls, including the one that `Dataset.load` does not list."""
    functions = stage._functions() or [getattr(stage, "_reader_func", None)]
    return [function.function for function in functions if function is not None]


def stage_settings(stage: Any) -> dict[str, Any]:
    """Return the attributes of a stage, without addresses in this process."""
    return {name: value for name, value in vars(stage).items() if name not in _ADDRESSES}


def is_seeded(stage: Any) -> bool:
    """Return whether a shuffle or random stage has a seed. Without one, TensorFlow sets both seeds to 0."""
    return bool(int(stage._seed) or int(stage._seed2))


def reshuffles_each_pass(stage: Any) -> bool:
    """Return whether each pass over a shuffle or random stage has another order or other random numbers."""
    if hasattr(stage, "_rerandomize"):
        return bool(stage._rerandomize)
    return getattr(stage, "_reshuffle_each_iteration", None) is not False


def is_declared_unordered(stage: Any) -> bool:
    """Return whether a parallel stage was created with ``deterministic=False``."""
    return bool(getattr(stage, "_deterministic", "") == "false")


def cache_file(stage: Any) -> Any:
    """Return the tensor with the file name of `cache(filename)`; empty for a cache in memory."""
    return stage._filename


def set_options(options: tf.data.Options) -> dict[str, Any]:
    """Return the options that were set, by name. A group of options counts as one option."""
    default = tf.data.Options()
    return {
        name: value
        for name, value in options._options.items()
        if value is not None and value != getattr(default, name, None) and getattr(value, "_options", True)
    }


def stage_number(stage: Any, name: str) -> int | None:
    """Return the argument "batch_size", "drop_remainder" or "count" of a stage, or None if it is unknown."""
    tensor = getattr(stage, f"_{name}", None)
    value = None if tensor is None else tf.get_static_value(tensor)
    return None if value is None else int(value)


def divided_by_files(dataset: tf.data.Dataset, count: int, index: int) -> tf.data.Dataset:
    """Return a worker's part of a dataset by its `auto_shard_policy`; `tf.errors.NotFoundError` if it has no files."""
    return distribute._AutoShardDataset(dataset, count, index)


def all_operations(graph: Any) -> list[Any]:
    """Return all operations of a graph and of the functions in it, at any depth."""
    graphs = [graph]
    for one in graphs:
        # Some functions have no graph, for example the gradient of `tf.nn.ctc_loss`.
        found = [getattr(one._get_function(name), "graph", None) for name in one._functions]
        graphs += [inner for inner in found if inner is not None and inner not in graphs]
    return [op for one in graphs for op in one.get_operations()]


def captures_vary(function: Any) -> bool:
    """Return whether the captured tensors of a concrete function may differ between calls."""
    return bool(function.graph.deferred_external_captures)


def names_in_checkpoint(saved: bytes) -> dict[str, str]:
    """Return the names of variables by key, from the `TrackableObjectGraph` of a `tf.train.Checkpoint`."""
    graph = TrackableObjectGraph.FromString(saved)
    return {entry.checkpoint_key: entry.full_name for node in graph.nodes for entry in node.attributes}


CALLBACK_SCRATCH = {"_model", "params", "csv_file", "writer", "_writers", "_summary_module", "min_delta"}
"""Attributes of Keras callbacks that are not state: set anew in every run (like the sign of `min_delta`), or files."""


def keras_seed() -> int | None:
    """Return the last seed of `keras.utils.set_random_seed`, or None if none was set since the last `clear_session`."""
    found: int | None = global_state.get_global_attribute(rng_utils.GLOBAL_RANDOM_SEED)
    return found


_GLOBAL_SEEDS = "global_seed_generator"  # a constant of this name exists only in newer versions of Keras


def keras_random_state() -> list[int] | None:
    """Return the state of Keras's global seed generator, or None if nothing has drawn from it."""
    generator = global_state.get_global_attribute(_GLOBAL_SEEDS)
    return None if generator is None else [int(number) for number in generator.state.numpy()]


def set_keras_random_state(state: list[int] | None) -> None:
    """Restore a state that `keras_random_state` returned. This may draw from Python's global random generator."""
    if state is None:
        global_state.set_global_attribute(_GLOBAL_SEEDS, None)
    else:
        seed_generator.global_seed_generator().state.assign(state)


@contextmanager
def preserve_keras_globals() -> Iterator[None]:
    """Context manager that restores Keras's thread-local state at the end: seeds and name counters."""
    trackers = global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER
    values = [dict(vars(tracker)) for tracker in trackers]
    try:
        yield
    finally:
        global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER = trackers
        for tracker, before in zip(trackers, values, strict=True):
            vars(tracker).clear()
            vars(tracker).update(before)


def compiled_parts(model: keras.Model) -> tuple[Any, ...]:
    """Return the objects that `compile` creates again in every call."""
    return model.optimizer, model._compile_loss, model._compile_metrics


def layers_within(layer: Any) -> list[Any]:
    """Return a layer and all layers inside it, at any depth."""
    return list(layer._flatten_layers())


def own_weights(layer: Any) -> list[Any]:
    """Return the variables of a layer, without those of inner layers, seed generators and metrics."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def forget_losses(layer: Any) -> None:
    """Clear the losses of a layer's last call, which are tensors of a finished graph."""
    layer._clear_losses()


def history(tensor: Any) -> list[tuple[Any, ...]]:
    """Return the layers and operations that produced a symbolic tensor of a functional model, last one first.

    Each entry is (operation, output index, arguments). Symbolic tensors in the arguments are replaced by numbers.
    """
    numbers, waiting = {id(tensor): 0}, [tensor]
    found: list[tuple[Any, ...]] = []
    while waiting:
        made_by = waiting.pop()._keras_history
        arguments = made_by.operation._inbound_nodes[made_by.node_index].arguments
        new = [one for one in arguments.keras_tensors if id(one) not in numbers]
        numbers.update({id(one): len(numbers) + place for place, one in enumerate(new)})
        waiting += new
        others = keras.tree.map_structure(
            lambda one: numbers[id(one)] if isinstance(one, keras.KerasTensor) else one,
            [arguments.args, arguments.kwargs],
        )
        found.append((made_by.operation, made_by.tensor_index, others))
    return found


KerasVariable: Any = keras.Variable


def call_by(variable: Any, path: str) -> None:
    """Set the path of a Keras variable."""
    variable._path = path


def held_by(variable: Any) -> Any:
    """Return the `tf.Variable` in a Keras variable, also while a layer with mixed precision reads a cast value."""
    return variable._value


def hold(variable: Any, value: tf.Variable) -> None:
    """Replace the `tf.Variable` in a Keras variable."""
    variable._value  # noqa: B018  (fails in a version that stores the value elsewhere)
    variable._value = value


def adam_slots(optimizer: Any, variable: Any) -> tuple[Any, Any]:
    """Return the two slots of a variable in `keras.optimizers.Adam`: the moving averages of gradients and squares."""
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index], optimizer._velocities[index]


def learning_rate_source(optimizer: Any) -> Any:
    """Return the schedule or function that an optimizer has as learning rate, or None if it is a number."""
    found = optimizer._learning_rate
    return found if callable(found) and not isinstance(found, KerasVariable) else None


def copy_decay_exclusions(source: Any, target: Any) -> None:
    """Copy the settings of `exclude_from_weight_decay` to another optimizer."""
    if hasattr(source, "_exclude_from_weight_decay"):
        target._exclude_from_weight_decay = set(source._exclude_from_weight_decay)
        target._exclude_from_weight_decay_pattern = source._exclude_from_weight_decay_pattern


def _unchanged(gradients_and_variables: Any) -> Any:
    return gradients_and_variables


def expect_averages(optimizer: Any, towers: int) -> None:
    """Keep an optimizer, for good, from summing the gradients of all towers, since they are averaged already.

    With one tower, the sum would be the gradient itself, but TensorFlow would keep the graph of every such sum. An
    optimizer that defines its own sum keeps it; with several towers that is a `ConfigError`.
    """
    own = getattr(optimizer, "_all_reduce_sum_gradients", None)
    # The next line fails in a version of Keras that sums gradients elsewhere.
    if getattr(own, "__func__", None) is keras.optimizers.Optimizer._all_reduce_sum_gradients:
        optimizer._all_reduce_sum_gradients = _unchanged
    elif own is not _unchanged and towers > 1:  # it may sum the averages, or contain a Keras optimizer that would
        raise ConfigError(
            f"{type(optimizer).__name__} sums the towers' gradients in its own way; with several towers it must be a "
            "Keras optimizer that leaves this to Keras"
        )


def tensorflow_seed() -> int | None:
    """Return the last seed of `tf.random.set_seed`, or None."""
    found: int | None = context.context()._seed
    return found


def set_tensorflow_seed(seed: int | None) -> None:
    """Set the global seed like `tf.random.set_seed`, or clear it if `seed` is None."""
    context.context()._set_global_seed(seed)


def drawing_seeds() -> random.Random | None:
    """Return the generator of seeds for eager random ops, or None before `tf.random.set_seed`."""
    return getattr(context.context(), "_rng", None)


def is_generator_state(variable: Any) -> bool:
    """Return whether a variable is the state of a `tf.random.Generator`."""
    return bool(variable.name.startswith("StateVar") and variable.dtype == tf.int64)


def watch_uses(use: Callable[[Any], None]) -> None:
    """Call `use` with a variable before each use of any variable (except by `raw_handle`), from now on, in all threads.

    Every use from Python reads the property `handle`, which this function replaces.
    """
    original: Any = BaseResourceVariable.handle

    def handle(self: Any) -> Any:
        use(self)
        return original.fget(self)

    BaseResourceVariable.handle = property(handle, doc=original.__doc__)


def raw_handle(variable: Any) -> Any:
    """Return a variable's handle without calling the function that was passed to `watch_uses`."""
    return variable._handle


def owner(handle: Any) -> Any:
    """Return the Python object of a resource, such as a lookup table, or None if it no longer exists."""
    reference = getattr(handle, "_parent_trackable", None)
    return None if reference is None else reference()


def set_patience(*, leader: str, jobs: Sequence[tuple[str, int]], connected_ms: int, silence_ms: int) -> None:
    """Set the time limits of TensorFlow's coordination service, before the workers connect.

    They hold until all workers are connected, and between two heartbeats. `leader` is the task that runs the service,
    such as ``/job:worker/replica:0/task:0``, and `jobs` has the name and the number of tasks of each job.
    """
    job = context.coordination_config_pb2.CoordinatedJob  # its module differs between versions
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=leader,
        heartbeat_timeout_in_ms=silence_ms,
        cluster_register_timeout_in_ms=connected_ms,
        coordinated_jobs=[job(name=name, num_tasks=number) for name, number in jobs],
    )


def report_to_cluster(why: str) -> None:
    """Make all further collective operations of the connected workers fail with an error message."""
    if has_started():
        with suppress(ValueError, tf.errors.OpError):  # not connected, or no longer
            context.context().report_error_to_cluster(13, why)  # INTERNAL


def has_started() -> bool:
    """Return whether TensorFlow has initialized its devices, without initializing them."""
    return bool(context.context()._initialized)


def without_deprecation_warnings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of TensorFlow that does not warn of its deprecation."""

    @wraps(function)
    def silent(*arguments: Any, **keywords: Any) -> Any:
        with deprecation.silence():
            return function(*arguments, **keywords)

    return silent
