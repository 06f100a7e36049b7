"""The compiled loop: many iterations over the batches of an iterator, traced once.

From a call to the update:

    TowerTrainer._run_compiled -> StepCalls.run -> CompiledCalls.run_loop    one call of many steps
    -> _iterate -> _step                                                     the loop and its body, traced
    -> Iteration -> Placement.run -> TowerTrainer.train_step                 one step, on each tower
    -> build, gradients, apply_gradients -> the guard -> the optimizer       one update

The loop ends after the requested number of steps, at the end of the data, at a requested stop, and at a non-finite
step. If a callback runs after every step, a call is a single iteration without a loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from prototrain.checkpoint.state import StateEntries, variables_in
from prototrain.data.batches import Batch, at_path, by_path, has_path
from prototrain.errors import ModelError
from prototrain.step.calls import (
    MOST_STEPS,
    ConcreteCall,
    StepCalls,
    StepResult,
    as_scalar,
    whole_number,
)
from prototrain.step.nonfinite import AssertFinite, Guard, SkipNonFinite, UndoCalls
from prototrain.step.trace import SummaryFile, TowerTrace, compiled, detect_summaries, tracing
from prototrain.step.update import weighted_outputs, without_weight
from prototrain.step.variables import StopVariable, scratch_variable
from prototrain.tf_private import KerasVariable, is_op_determinism_enabled, next_synchronously
from prototrain.towers import components

if TYPE_CHECKING:
    from prototrain.trainers.tower import TowerTrainer

State = dict[str, Any]
"""The loop variables by name."""
_SMALL = 2**22  # bytes, at 8 per element: maximum total size of variables that are copied before each call
_ASSIGNMENTS = ("Assign", "ResourceScatter")  # beginnings of the types of ops that assign to a variable


class Iteration:
    """One iteration on all towers: hooks, the towers' steps, their mean, and the guard.

    Args:
        trainer: a tower trainer whose callbacks are set up.
        may_fail: whether a call may raise an error at a step that is not finite; False if other towers continue.
        may_undo: whether a call with a step that is not finite may be undone, to be repeated.
        may_be_watched: whether the last step of a call can run separately, so that callbacks can watch its tensors.
    """

    def __init__(
        self, trainer: TowerTrainer, *, may_fail: bool = True, may_undo: bool = False, may_be_watched: bool = True
    ) -> None:
        self.trainer = trainer
        self.train_step: Callable[[Batch], Mapping[str, Any]] = trainer.train_step
        self.placement, self.data = trainer.placement, trainer.data
        self.may_be_watched = may_be_watched
        self.watched_names = frozenset(trainer.callbacks.watched_names)
        # Whether every call is a single step, without a loop. With several towers, convolutions inside a loop may
        # differ in the last bits from those outside a loop.
        self.is_single_step = trainer.towers == 1 and (trainer.callbacks.each_step or not trainer.is_compiled)
        # All that steps change, on all towers. Each tower's copy: assigning to a replicated variable would combine the
        # values of the towers.
        self.changed = [copy for variable in variables_in(trainer.state).values() for copy in components(variable)]
        self.guard = self._choose_guard(may_fail and trainer.placement.may_fail, may_undo)

    def _choose_guard(self, may_fail: bool, may_undo: bool) -> Guard:
        trainer = self.trainer
        if trainer.loss_scale is not None:
            return SkipNonFinite(trainer.loss_scale, ends=trainer.check_finite)
        if not trainer.check_finite:
            return Guard()
        # To undo a call, its batches must be at hand or be read again quickly, and all state be in small variables.
        may_undo = may_undo and trainer.towers == 1 and not self.is_single_step
        may_undo = may_undo and (bool(self.data.block) or self.data.mode == "iterator")
        if may_undo and StateEntries(trainer.state).saveables.keys() <= {"data"}:
            elements = [variable.shape.num_elements() for variable in self.changed]
            if None not in elements and 8 * sum(elements) <= _SMALL:
                return UndoCalls(checks_gradients=trainer.has_own_train_step)
        return AssertFinite() if may_fail else SkipNonFinite()

    def changed_early(self) -> list[Any]:
        """Return the variables, of all towers, that a step may change before it is found not to be finite.

        With the default `train_step` these are the variables that the forward pass assigns, such as batch statistics
        and seeds. A custom `train_step` may change any variable.
        """
        trainer = self.trainer
        if not trainer.check_finite:
            return []
        if trainer.has_own_train_step:
            return self.changed
        changed = [variable for variable in trainer.variables.values() if not variable.trainable]
        if any(callback.overrides("before_run") for callback in trainer.callbacks):
            changed += [v for v in trainer.optimizer.variables if v is trainer.optimizer.learning_rate]
        return [copy for variable in changed for copy in components(variable)]

    def __call__(
        self, inputs: Batch, step: tf.Tensor, *, watched: bool = False
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, dict[str, tf.Tensor]]:
        """Trace an iteration on a global batch after `step` (int64) completed steps.

        Returns:
            the scalars by name, averaged over the towers; whether the iteration counts as a step, a bool tensor that is
            False if the guard found it non-finite; and the tensors of `watched_names`, if it is watched.
        """
        trainer, results = self.trainer, self.placement.strategy.experimental_local_results
        with _after(inputs):
            self.guard.begin(self.changed_early(), step)
            trainer.counter.traced = step
            if trainer.is_compiled:
                trainer.callbacks.before_run()
            graph: Any = tf.compat.v1.get_default_graph()
            earlier = len(graph.get_operations())
            checked, outputs, finite, seen = self.placement.run(lambda part: self._tower(part, watched), inputs)
            if self.placement.parts > 1 and trainer.has_own_train_step:
                self._check_assignments(graph, graph.get_operations()[earlier:])
            seen = {name: _join(name, results(value)) for name, value in seen.items()}
            # Scalars and `finite` are the same in all towers.
            checked, outputs = (
                {name: results(value)[0] for name, value in found.items()} for found in (checked, outputs)
            )
            seen |= {name: outputs[name] for name, value in seen.items() if name in outputs and not value.shape.rank}
            follows = trainer.is_compiled and any(callback.overrides("after_run") for callback in trainer.callbacks)
            follow = (lambda: trainer.callbacks.after_run(dict(outputs))) if follows else None
            is_checked = trainer.check_finite and trainer.has_own_train_step
            counts = self.guard.finish(checked if is_checked else {}, results(finite)[0], follow)
        return outputs, counts, seen

    def _tower(self, inputs: Batch, watched: bool) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], Any, Any]:
        """Trace one tower's part of the iteration.

        Returns:
            the scalars by name, to check and to report; whether all updates were finite; and the watched tensors.
        """
        trace = TowerTrace(self.guard, watched)
        with _after(inputs), tracing(trace), tf.variable_creator_scope(_lift):
            outputs = self.train_step(inputs)
        if not isinstance(outputs, Mapping):
            raise ModelError(f"train_step() must return a dict of scalar tensors, not {type(outputs).__name__}")
        if self.trainer.loss_scale is not None:
            trace.scalars["loss_scale"] = tf.convert_to_tensor(self.trainer.loss_scale.scale)
        seen = _pick(self.watched_names, trace.nets, inputs) if watched else {}
        outputs = {**weighted_outputs(trace, outputs, self.placement), **trace.scalars}
        outputs = self._average({name: as_scalar(name, value) for name, value in outputs.items()})
        finite = tf.reduce_all(tf.stack(trace.applied)) if trace.applied else tf.constant(True)
        checked = {name: value for name, value in outputs.items() if name not in trace.scalars}
        return checked, without_weight(trace, outputs), finite, seen

    def _check_assignments(self, graph: Any, operations: Sequence[Any]) -> None:
        """Raise a ModelError if every tower has assigned to a variable that only one device has."""
        handles = {inner.name: id(handle) for handle, inner in graph.captures}
        assigned = Counter(
            handles.get(op.inputs[0].name) for op in operations if op.type.startswith(_ASSIGNMENTS) and op.inputs
        )
        is_on_towers = self.placement.strategy.extended.variable_created_in_scope
        for name, entry in self.trainer.state.items():
            variable = entry.value if isinstance(entry, KerasVariable) else entry
            if isinstance(variable, tf.Variable) and assigned[id(variable.handle)] > 1 and not is_on_towers(variable):
                raise ModelError(
                    f"train_step assigns to state[{name!r}] once on each tower: make this variable in "
                    "`with self.strategy.scope():`, with an aggregation such as tf.VariableAggregation.MEAN"
                )

    def _average(self, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Average outputs and moving statistics over the towers in one call; from inside a tower."""
        placement = self.placement
        if placement.towers == 1:
            return outputs
        statistics = placement.moving_statistics()
        means = placement.mean([*outputs.values(), *map(tf.convert_to_tensor, statistics)])
        for variable, mean in zip(statistics, means[len(outputs) :], strict=True):
            variable.assign(mean)
        return dict(zip(outputs, means, strict=False))


def _lift(make: Callable[..., Any], **arguments: Any) -> Any:
    """Create a variable outside the graph: the call is traced only once and cannot create variables."""
    with tf.init_scope():
        return make(**arguments)


class CompiledCalls(StepCalls):
    """Runs iterations in one compiled loop; `stride` is the difference between their step numbers."""

    def __init__(self, iteration: Iteration, stop: StopVariable, *, stride: int = 1, towers: int | None = None) -> None:
        super().__init__(iteration)
        self.has_summaries = None if iteration.may_be_watched else False
        self._stop, self._stride = stop, stride
        self._completed = scratch_variable(0, dtype=tf.int64, name="completed")  # correct even after a failed call
        self._rows: Any = None  # the packed scalars of each step of a call, in a variable, since a call may fail
        self._counted = -1  # the value of `_completed`, or -1 if unknown
        self._call = ConcreteCall(self._iterate, towers=iteration.placement.towers if towers is None else towers)
        self._watched = compiled(self._iterate_watched, dict(iteration.data.element_spec), tf.TensorSpec([], tf.int64))
        self._file: SummaryFile | None = None

    def completed(self) -> int:
        return int(self._completed)

    @property
    def graph(self) -> Any:
        return self._call.graph

    def count_from(self, start: int) -> None:
        """Set the number of completed steps."""
        if start != self._counted:
            self._completed.assign(np.int64(start))
        self._counted = -1  # unknown until the call has returned

    def trace(self, iterator: Any) -> None:
        """Trace the loop if it is not traced yet."""
        self._call.trace(iterator, whole_number(1))

    def run_loop(self, iterator: Any, n: int) -> StepResult:
        """Run up to `n` steps; raises a `tf.errors.OpError` if one fails."""
        results = self._call(iterator, whole_number(n))
        return self._result(**dict(zip(self._returned, results, strict=True)))

    def _run(self, iterator: Any, n: int, start: int) -> StepResult:
        self.count_from(start)
        result = self.run_loop(iterator, n)
        self._counted = start + result.steps
        return result

    def scalars_so_far(self, steps: int) -> dict[str, list[float]]:
        return {} if self._rows is None else self._packer.unpack(self._rows[:steps])  # None without scalars

    @property
    def may_be_watched(self) -> bool:
        return self._iteration.may_be_watched and (
            bool(self._iteration.watched_names) or self.has_summaries is not False
        )

    def run_watched(self, start: int) -> StepResult:
        iterator = self._iteration.data.iterator
        if not self._iteration.watched_names:
            self.trace(iterator)
            if not self.has_summaries:
                return self.run(start, 1)
        self.count_from(start)
        self._file = SummaryFile() if self._file is None else self._file
        try:
            batch = iterator.get_next_as_optional()
            if not batch.has_value():
                return StepResult(steps=0, data_ended=True)
            state, tensors = self._watched(batch.get_value(), tf.constant(np.int64(start)))
            result = self._result(**state)
            result.watched, result.summary_events = tensors, self._file.take()
        except tf.errors.OpError as error:
            self._file.take()
            result = self._failed(error, start)
            result.scalars = {}  # those of the step are not known
            return result
        return self._checked(result, start)

    def _iterate_watched(self, inputs: Batch, start: tf.Tensor) -> tuple[State, dict[str, tf.Tensor]]:
        assert self._file is not None
        guard = self._iteration.guard
        guard.begin_call(self._iteration.changed)
        with self._file.writer.as_default(step=start + 1), tf.summary.record_if(True):
            state, seen = self._step(start, inputs, tf.constant(0), tf.zeros([], tf.float64), watched=True)
        return {**state, "kept": guard.end_call(state["finite"])}, seen

    def _iterate(self, iterator: Any, n: tf.Tensor) -> State:
        first, body = self._first_state(), self._body(iterator)

        def has_more(state: State) -> Any:
            more = (state["done"] < n) & ~self._stop.value
            more = more & state["finite"] if "finite" in state else more
            return more & ~state["ended"] if "ended" in state else more

        self._iteration.guard.begin_call(self._iteration.changed)
        with detect_summaries() as has_summaries:
            if self._iteration.is_single_step:  # entering a loop takes about as long as a small step
                (state,) = body(first)
            else:
                (state,) = tf.while_loop(has_more, body, [first])
                # Those of the completed steps, and of one that is not finite.
                made = state["done"] + (1 - tf.cast(state["finite"], tf.int32) if "finite" in state else 0)
                state["scalars"] = tf.zeros([0], tf.float64) if self._rows is None else self._rows[:made]
                if self._iteration.guard.undoes_calls:
                    state["kept"] = self._iteration.guard.end_call(state["finite"])
        self.has_summaries = self._iteration.may_be_watched and has_summaries()
        self._returned = sorted(state)  # TensorFlow flattens a dict in this order
        return state

    def _first_state(self) -> State:
        # Only the variables that can change: each one costs several ops in every iteration.
        first: State = {"done": tf.constant(0), "waited": tf.zeros([], tf.float64)}
        if self._iteration.is_single_step:
            first["scalars"] = tf.zeros([0], tf.float64)
        first |= {"finite": tf.constant(True)} if self._iteration.guard.reports_non_finite else {}
        return first | ({} if self._iteration.data.endless else {"ended": tf.constant(False)})

    def _body(self, iterator: Any) -> Callable[[State], list[State]]:
        endless = self._iteration.data.endless
        start = tf.identity(self._completed)

        def body(state: State) -> list[State]:
            begin = _time_after([state["done"]])
            with tf.control_dependencies([begin]):
                batch = next_synchronously(iterator) if endless else iterator.get_next_as_optional()
            took = _time_after(tf.nest.flatten(batch, expand_composites=True)) - begin
            waited = state["waited"] + took

            def iterate(inputs: Batch) -> State:
                after, _ = self._step(start, inputs, state["done"], waited)
                return {name: after[name] for name in state}

            if endless:
                return [iterate(batch)]
            ended = {**state, "waited": waited, "ended": tf.constant(True)}
            return [tf.cond(batch.has_value(), lambda: iterate(batch.get_value()), lambda: ended)]

        return body

    def _step(
        self, start: tf.Tensor, inputs: Batch, done: Any, waited: Any, *, watched: bool = False
    ) -> tuple[State, dict[str, tf.Tensor]]:
        """Return the state after one iteration, and the watched tensors."""
        number = start + tf.cast(done * self._stride, tf.int64)
        outputs, counts, seen = self._iteration(inputs, number, watched=watched)
        scalars = self._packer.pack(outputs)
        is_stored = scalars.shape[0] and not self._iteration.is_single_step and not watched
        stored = [self._store(done, scalars)] if is_stored else []
        completed = tf.cast(counts, tf.int32) if self._iteration.guard.reports_non_finite else tf.constant(1)
        # Count after the update, so that the number of completed steps is correct if the call fails.
        with tf.control_dependencies([counts, scalars, *stored]):
            self._completed.assign_add(tf.cast(completed, tf.int64))
        state = {"done": done + completed, "finite": counts, "ended": tf.constant(False), "waited": waited}
        return {**state, "scalars": scalars}, seen

    def _store(self, done: tf.Tensor, scalars: tf.Tensor) -> Any:
        """Store the packed scalars of a step; traced. Returns the op to wait for."""
        if self._rows is None:
            with tf.init_scope():
                zeros = tf.zeros([MOST_STEPS, *scalars.shape], scalars.dtype)
                self._rows = scratch_variable(zeros, name="scalars")
        return tf.raw_ops.ResourceScatterUpdate(resource=self._rows.handle, indices=done, updates=scalars)


def _after(inputs: Batch) -> Any:
    """Make ops wait for the batch, so that a failed read leaves seeds and learning rates unchanged."""
    return tf.control_dependencies(tf.nest.flatten(inputs, expand_composites=True))


def _time_after(tensors: list[Any]) -> tf.Tensor:
    if is_op_determinism_enabled():  # TensorFlow refuses to read the clock; the waiting time is unknown
        return tf.zeros([], tf.float64)
    with tf.device("CPU:0"), tf.control_dependencies(tensors):
        return tf.timestamp()


def _pick(names: frozenset[str], nets: Sequence[Mapping[str, Any]], inputs: Batch) -> dict[str, tf.Tensor]:
    """Return one tower's tensors by name, from `build` or from the batch, joined over its micro-batches."""
    found = {}
    for name in sorted(names):
        values = [at_path(net, name) for net in nets if has_path(net, name)]
        values = values or ([at_path(inputs, name)] if has_path(inputs, name) else [])
        if not values or any(isinstance(value, Mapping) for value in values):
            known = ", ".join(dict.fromkeys([*by_path(inputs), *(key for net in nets for key in net)]))
            raise ModelError(f"there is no tensor {name!r} in the step; there are: {known}")
        found[name] = _join(name, [tf.convert_to_tensor(value) for value in values])
    return found


def _join(name: str, parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Join the parts of a tensor: add up weights, average other scalars, concatenate all others."""
    if len(parts) == 1:
        return parts[0]
    if parts[0].shape.rank:
        return tf.concat(parts, 0)
    return tf.add_n(parts) if name == "loss_weight" else tf.reduce_mean(tf.stack(parts), 0)
