"""Every private name of TensorFlow and Keras that prototrain uses: one function for each need.

No other module touches one. `tests/test_tf_private.py` has a test for each function, which fails if a new version of
TensorFlow or Keras has changed what the function relies on.
"""

from __future__ import annotations

import mmap
import random
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import keras
import tensorflow as tf

# -- tf.data -----------------------------------------------------------------------------------------------------------

_ADDRESSES = ("_variant_tensor_attr", "_address", "_dataset_id")  # of this process, or of a service
_GENERATOR = b"@@epoch_num_random_samples"  # TensorFlow's name of a part of a shuffle's state
_NAME = re.compile(rb"Iterator::[\w:\[\]]+")


def iterator_state(iterator: Any) -> tf.Tensor:
    """A copy of an iterator's state, a vector of variants; raises an OpError if it cannot be saved."""
    return iterator._serialize_to_tensors()["_STATE"]


def set_iterator_state(iterator: Any, state: tf.Tensor) -> None:
    """Restore the state of an iterator of the same dataset; raises an OpError if it is of another one."""
    iterator._restore_from_tensors({"_STATE": state})


def iterator_handle(iterator: Any) -> tf.Tensor:
    """The resource tensor of an iterator."""
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
    """Whether the saved state of an iterator, the bytes of a file, contains the random generator of a shuffle.

    If TensorFlow names it otherwise, no state does, and a resumed run reads from the last state that did.
    """
    at = content.find(_GENERATOR)
    while at >= 0:
        if _NAME.fullmatch(bytes(content[content.rfind(b"Iterator::", 0, at) : at])):  # not in an example
            return True
        at = content.find(_GENERATOR, at + 1)
    return False


def stage_name(stage: Any) -> str:
    """The name of a stage's class, such as ``_ParallelMap``.

    The table in `prototrain.data.rule` has these names; data with any other stage is replayed.
    """
    return type(stage).__name__.removesuffix("V2").removesuffix("Dataset")


def stage_inputs(stage: Any) -> list[Any]:
    """The datasets that a stage reads from."""
    return list(stage._inputs())


def stood_for(stage: Any) -> Any:
    """The dataset that a reader wraps, or None."""
    return getattr(stage, "_impl", None)


def stage_functions(stage: Any) -> list[Any]:
    """The concrete functions that a stage calls; `Dataset.load` has one that is not among its `_functions`."""
    functions = stage._functions() or [getattr(stage, "_reader_func", None)]
    return [function.function for function in functions if function is not None]


def stage_settings(stage: Any) -> dict[str, Any]:
    """The attributes of a stage, without addresses of this process."""
    return {name: value for name, value in vars(stage).items() if name not in _ADDRESSES}


def is_seeded(stage: Any) -> bool:
    """Whether a shuffle or a stage of random numbers has a seed; without one, TensorFlow sets both to 0."""
    return bool(int(stage._seed) or int(stage._seed2))


def reshuffles_each_pass(stage: Any) -> bool:
    """Whether each pass has another order or other random numbers.

    The arguments `reshuffle_each_iteration`, by default True, and `rerandomize_each_iteration`, by default False.
    """
    if hasattr(stage, "_rerandomize"):
        return bool(stage._rerandomize)
    return getattr(stage, "_reshuffle_each_iteration", None) is not False


def is_declared_unordered(stage: Any) -> bool:
    """Whether a parallel stage was made with ``deterministic=False``."""
    return bool(getattr(stage, "_deterministic", "") == "false")


def cache_file(stage: Any) -> Any:
    """The tensor of the file name of `cache(filename)`, empty for a cache in memory."""
    return stage._filename


def set_options(options: tf.data.Options) -> dict[str, Any]:
    """The options that were set, by name; a group of options is one of them."""
    default = tf.data.Options()
    return {
        name: value
        for name, value in options._options.items()
        if value is not None and value != getattr(default, name, None) and getattr(value, "_options", True)
    }


def stage_number(stage: Any, name: str) -> int | None:
    """An argument of a stage: "batch_size", "drop_remainder" or "count"; None if it is not known."""
    tensor = getattr(stage, f"_{name}", None)
    value = None if tensor is None else tf.get_static_value(tensor)
    return None if value is None else int(value)


def divided_by_files(dataset: tf.data.Dataset, count: int, index: int) -> tf.data.Dataset:
    """A worker's part of a dataset, divided by its `auto_shard_policy`; raises a NotFoundError if it reads no files."""
    from tensorflow.python.data.experimental.ops import distribute

    part: tf.data.Dataset = distribute._AutoShardDataset(dataset, count, index)
    return part


# -- graphs and ops ----------------------------------------------------------------------------------------------------


def called_function(graph: Any, name: str) -> Any:
    """The traced function of this name in a graph, with its own `graph`; None if there is none, or one without a graph.

    The gradient of `tf.nn.ctc_loss` is a function without a graph.
    """
    found = graph._get_function(name)
    return found if hasattr(found, "graph") else None


def nested_functions(graph: Any) -> list[Any]:
    """All functions that a graph knows."""
    found = [called_function(graph, name) for name in graph._functions]
    return [function for function in found if function is not None]


def called(op: Any) -> list[Any]:
    """The graphs of the functions that an operation calls: branches, a loop's condition and body, a nested function."""
    definition = op.graph.op_def_for_type(op.type)  # faster than the op's own attributes
    if not any(attribute.type in ("func", "list(func)") for attribute in definition.attr):
        return []
    names = []
    for _, attribute in sorted(op.node_def.attr.items()):
        names += [attribute.func.name] * attribute.HasField("func")
        names += [function.name for function in attribute.list.func]
    functions = [called_function(op.graph, name) for name in names]
    return [function.graph for function in functions if function is not None]


def all_operations(graph: Any) -> Iterator[Any]:
    """All operations of a graph, and of the functions that they call."""
    for op in graph.get_operations():
        yield op
        for function in called(op):
            yield from all_operations(function)


def captures_vary(function: Any) -> bool:
    """Whether the captured tensors of a concrete function may differ from call to call."""
    return bool(function.graph.deferred_external_captures)


def trackable_kinds() -> tuple[type, ...]:
    """The base class of everything that `tf.train.Checkpoint` saves."""
    return (tf.__internal__.tracking.Trackable,)


def names_in_checkpoint(saved: bytes) -> dict[str, str]:
    """The names of variables by their keys, from the `TrackableObjectGraph` of a `tf.train.Checkpoint`."""
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    graph = TrackableObjectGraph.FromString(saved)
    return {entry.checkpoint_key: entry.full_name for node in graph.nodes for entry in node.attributes}


def is_stateful(kind: str) -> bool:
    """Whether an op is stateful; True for an unknown one."""
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(kind)
    return definition is None or definition.is_stateful


# -- Keras -------------------------------------------------------------------------------------------------------------

CALLBACK_SCRATCH = {"_model", "params", "csv_file", "writer", "_writers", "_summary_module", "min_delta"}
"""Attributes of Keras's callbacks that are not state: set in every run (`min_delta` gets its sign), or open files."""


def keras_seed() -> int | None:
    """The last seed of `keras.utils.set_random_seed`; None if there was none, or the session was cleared since."""
    from keras.src.backend.common import global_state
    from keras.src.utils import rng_utils

    found: int | None = global_state.get_global_attribute(rng_utils.GLOBAL_RANDOM_SEED)
    return found


@contextmanager
def keras_globals_kept() -> Iterator[None]:
    """Restore, at the end, what Keras keeps for each thread: seeds and counts of names."""
    from keras.src.backend.common import global_state

    trackers = global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER
    values = [dict(vars(tracker)) for tracker in trackers]
    try:
        yield
    finally:
        global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER = trackers
        for tracker, before in zip(trackers, values, strict=True):
            vars(tracker).clear()
            vars(tracker).update(before)


def in_stateless_scope() -> bool:
    """Whether an assignment goes to a `keras.StatelessScope`, and the variable keeps its value."""
    from keras.src.backend.common import stateless_scope

    return bool(stateless_scope.in_stateless_scope())


def compiled_parts(model: keras.Model) -> tuple[Any, ...]:
    """Objects that each `compile` of a model makes again."""
    return model.optimizer, model._compile_loss, model._compile_metrics


def functional_kinds() -> tuple[type, ...]:
    """The class of `keras.Model(inputs, outputs)`."""
    from keras.src.models.functional import Functional

    return (Functional,)


def layers_within(layer: Any) -> list[Any]:
    """A layer and all layers inside it, at any depth."""
    return list(layer._flatten_layers())


def own_weights(layer: Any) -> list[Any]:
    """The variables of a layer itself, without those of inner layers, seeds and metrics."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def forget_losses(layer: Any) -> None:
    """Drop the losses of a layer's last call: tensors of a finished graph."""
    layer._clear_losses()


def history(tensor: Any) -> list[tuple[Any, ...]]:
    """The layers and operations that have led to a symbolic tensor of a functional model, with their arguments.

    The last one is first. Instead of symbolic tensors, the arguments have their numbers.
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
    """Give a Keras variable another path."""
    variable._path = path


def hold(variable: Any, value: tf.Variable) -> None:
    """Give a Keras variable another `tf.Variable`."""
    variable._value  # noqa: B018  (a version without it keeps the value somewhere else)
    variable._value = value


def adam_slots(optimizer: Any, variable: Any) -> tuple[Any, Any]:
    """The two slots of a variable in `keras.optimizers.Adam`: the means of gradients and of their squares."""
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index], optimizer._velocities[index]


def learning_rate_source(optimizer: Any) -> Any:
    """The schedule or function that was given as learning rate; None if it was a number."""
    found = optimizer._learning_rate
    return found if callable(found) and not isinstance(found, KerasVariable) else None


def kept_from_decay(optimizer: Any) -> list[str]:
    """The arguments of `exclude_from_weight_decay`: parts of names, and the number of variables."""
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    names = [] if pattern is None else sorted(pattern.pattern.split("|"))
    number = len(getattr(optimizer, "_exclude_from_weight_decay", ()))
    return names + [f"{number} variables"] * bool(number)


def copy_kept_from_decay(source: Any, target: Any) -> None:
    """Copy the variables of `exclude_from_weight_decay` to another optimizer."""
    if kept_from_decay(source):
        target._exclude_from_weight_decay = set(source._exclude_from_weight_decay)
        target._exclude_from_weight_decay_pattern = source._exclude_from_weight_decay_pattern


def expect_averages(optimizer: Any) -> None:
    """Keep an optimizer from adding up the gradients of all towers, because they are averages already."""
    optimizer._all_reduce_sum_gradients  # noqa: B018  (a version without it adds them up somewhere else)
    optimizer._all_reduce_sum_gradients = lambda gradients_and_variables: gradients_and_variables


# -- the runtime -------------------------------------------------------------------------------------------------------


def _context() -> Any:
    from tensorflow.python.eager import context

    return context.context()


def tensorflow_seed() -> int | None:
    """The last seed of `tf.random.set_seed`, or None."""
    found: int | None = _context()._seed
    return found


def set_tensorflow_seed(seed: int | None) -> None:
    """Like `tf.random.set_seed`, but also takes None."""
    _context()._set_global_seed(seed)


def drawing_seeds() -> random.Random | None:
    """The generator of the seeds of eager random ops; None before `tf.random.set_seed`."""
    return getattr(_context(), "_rng", None)


def is_deterministic() -> bool:
    """Whether ops without a deterministic form fail, after `tf.config.experimental.enable_op_determinism()`."""
    from tensorflow.python.framework import config

    return bool(config.is_op_determinism_enabled())


def tell_of_uses(use: Callable[[Any], None]) -> None:
    """Call `use` with a variable before each use of it, from now on and in all threads.

    Every use from Python reads the property `handle`; `raw_handle` does not.
    """
    from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

    original: Any = BaseResourceVariable.handle

    def handle(self: Any) -> Any:
        use(self)
        return original.fget(self)

    BaseResourceVariable.handle = property(handle, doc=original.__doc__)


def raw_handle(variable: Any) -> Any:
    """A variable's handle, without a call of the function of `tell_of_uses`."""
    return variable._handle


def owner(handle: Any) -> Any:
    """The object of a resource, such as a lookup table; None if it no longer exists."""
    reference = getattr(handle, "_parent_trackable", None)
    return None if reference is None else reference()


# -- summaries -------------------------------------------------------------------------------------------


class ChangingWriter(tf.summary.SummaryWriter):  # type: ignore[misc]
    """A summary writer that forwards each `tf.summary` call to the writer of `present`."""

    @abstractmethod
    def present(self) -> tf.summary.SummaryWriter:
        """The writer to use now."""

    @property
    def _resource(self) -> Any:
        return self.present()._resource

    def init(self) -> None:
        """Do nothing, as the two below: the other writer does it."""

    flush = close = init


def default_writer() -> Any:
    """The current summary writer of this thread, or None."""
    from tensorflow.python.ops import summary_ops_v2

    return summary_ops_v2._summary_state.writer


@contextmanager
def writing_through(write: Callable[..., Any]) -> Iterator[None]:
    """Let `tf.summary.scalar` and the like call `write` meanwhile."""
    from tensorboard.compat import tf2

    summary = tf2.summary
    original, summary.write = summary.write, write
    try:
        yield
    finally:
        summary.write = original


def set_patience(*, leader: str, jobs: Sequence[tuple[str, int]], connected_ms: int, silence_ms: int) -> None:
    """Set how long TensorFlow's coordination service waits for workers; before they connect.

    Args:
        leader: the task with the service, such as ``/job:worker/replica:0/task:0``.
        jobs: the kinds of tasks, each with their number.
        connected_ms, silence_ms: the limits until all are connected, and between two heartbeats.
    """
    from tensorflow.python.eager import context

    job = context.coordination_config_pb2.CoordinatedJob  # its module differs between versions
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=leader,
        heartbeat_timeout_in_ms=silence_ms,
        cluster_register_timeout_in_ms=connected_ms,
        coordinated_jobs=[job(name=name, num_tasks=number) for name, number in jobs],
    )


def report_to_cluster(why: str) -> None:
    """Make every collective operation of all connected workers fail with a text, from now on."""
    if has_started():
        with suppress(ValueError, tf.errors.OpError):  # not connected, or no longer
            _context().report_error_to_cluster(13, why)  # INTERNAL


def has_started() -> bool:
    """Whether TensorFlow has made its devices, without a start of TensorFlow."""
    return bool(_context()._initialized)
