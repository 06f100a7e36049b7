"""The compiled loop: many iterations over the batches of an iterator, traced once.

The loop ends after the requested number of steps, at the end of the data, when a stop is requested, and at the step
whose loss or gradient is not finite. When a callback runs after every step, it is one iteration without a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.step.functions import ConcreteCall
from prototrain.step.nonfinite import NoCheck
from prototrain.step.python_summaries import noting_summaries
from prototrain.step.result import ScalarPacker, StepResult
from prototrain.step.trace import TowerTrace, join, pick, tracing
from prototrain.step.variables import StopVariable, scratch_variable
from prototrain.tf_private import is_deterministic, next_synchronously
from prototrain.towers import components

Batch = dict[str, Any]

State = dict[str, Any]
"""The loop's variables by name, which one iteration passes to the next."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Everything that a compiled call needs to know of a trainer.

    Attributes:
        train_step: one tower's iteration, from its batch to scalars by name; traced.
        placement: a `Placement`, which runs it on the towers.
        data: the training data: `iterator`, `endless` and `element_spec`.
        guard: the policy for non-finite steps.
        changed_early: returns the variables that a step may change before it is known to be finite.
        must_be_finite: whether the guard checks all scalars, not only those of an update.
        before_run: called while each iteration is traced, with the number of completed steps.
        after_run: called after it with the scalars, or None.
        watched_names: names of the tensors to return from a watched step.
        may_be_watched: whether the last step of a call can be run as a watched one.
        alone: whether every call is a single step, which needs no loop.
        stop_requested: whether the run is to stop.
        log: prints a line for the user.
    """

    train_step: Callable[[Batch], Mapping[str, tf.Tensor]]
    placement: Any
    data: Any
    guard: NoCheck
    changed_early: Callable[[], Sequence[Any]]
    must_be_finite: bool
    before_run: Callable[[tf.Tensor], None]
    after_run: Callable[[dict[str, Any]], None] | None
    watched_names: frozenset[str]
    may_be_watched: bool
    alone: bool
    stop_requested: Callable[[], bool]
    log: Callable[[str], None]


class Iteration:
    """What one iteration does on all towers: hooks, the towers' steps, the mean over them, the guard.

    Args:
        plan: the plan of the step.
    """

    def __init__(self, plan: StepPlan) -> None:
        self._plan = plan
        self._packer = ScalarPacker()

    def __call__(
        self, inputs: Batch, step: tf.Tensor, *, watched: bool = False
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, dict[str, tf.Tensor]]:
        """Trace it.

        Args:
            inputs: a global batch.
            step: the number of completed steps, int64.
            watched: whether to return the plan's `watched_names`.

        Returns:
            the step's scalars by name, averaged over the towers; whether it counts as a step (a bool tensor: False if
            the guard found it not finite); the watched tensors by name.
        """
        plan = self._plan
        with behind(inputs):
            # Every tower's own copy, since assigning through a replicated variable would combine what the towers have.
            plan.guard.begin([copy for variable in plan.changed_early() for copy in components(variable)], step)
            plan.before_run(step)
            outputs, finite, seen = plan.placement.run(lambda part: self._tower(part, watched), inputs)
            seen = {name: join(plan.placement.local_results(value)) for name, value in seen.items()}
            # Both are the same in all towers.
            outputs = {name: plan.placement.local_results(value)[0] for name, value in outputs.items()}
            finite = plan.placement.local_results(finite)[0]
            after_run = plan.after_run
            follow = None if after_run is None else lambda: after_run(dict(outputs))
            counts = plan.guard.finish(outputs if plan.must_be_finite else {}, finite, follow)
        return outputs, counts, seen

    def _tower(self, inputs: Batch, watched: bool) -> tuple[dict[str, tf.Tensor], tf.Tensor, dict[str, tf.Tensor]]:
        """One tower's part of it."""
        trace = TowerTrace(self._plan.guard, watched)
        with behind(inputs), tracing(trace), tf.variable_creator_scope(self._warn_of_variable):
            outputs = self._plan.train_step(inputs)
        if not isinstance(outputs, Mapping):
            raise ModelError(f"train_step() must return a dict of scalar tensors, not {type(outputs).__name__}")
        seen = pick(self._plan.watched_names, trace.nets, inputs) if watched else {}
        outputs = {**trace.weighted_outputs(outputs, self._plan.placement), **trace.scalars}
        summaries = {f"tf.summary/{number}": one.value for number, one in enumerate(trace.summaries)}
        outputs = self._average({**outputs, **summaries})
        for name, summary in zip(summaries, trace.summaries, strict=True):
            summary.record(outputs.pop(name))
        return outputs, trace.finite(), seen

    def _average(self, outputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Average outputs and moving statistics over the towers, in one go; from inside a tower."""
        placement = self._plan.placement
        if placement.towers == 1:
            return outputs
        statistics = placement.moving_statistics()
        vectors = self._packer.pack(outputs)
        single, double, *means = placement.mean([*vectors, *map(tf.convert_to_tensor, statistics)])
        for variable, mean in zip(statistics, means, strict=True):
            variable.assign(mean)
        return self._packer.unstack((single, double))

    def _warn_of_variable(self, make: Callable[..., Any], **arguments: Any) -> Any:
        self._plan.log(
            f"WARNING: train_step() created the variable {arguments.get('name')!r}, which no checkpoint holds; "
            "build the model with self.build(), and make optimizers attributes of the trainer"
        )
        with tf.init_scope():  # the call is traced once only, and cannot begin with making a variable
            return make(**arguments)


def behind(inputs: Batch) -> Any:
    """Let nothing begin before the batch is there: a failed read must not find that a seed or a rate has moved on."""
    return tf.control_dependencies(tf.nest.flatten(inputs, expand_composites=True))


class CompiledLoop:
    """The iterations of a plan, many in one graph call.

    Args:
        plan: what an iteration does.
        stop: ends the loop.
        stride: the difference of the step numbers of two successive iterations.
        towers: the number of towers it runs on; the plan's by default.

    Attributes:
        completed: an int64 variable with the number of completed steps, correct also after a failed call.
        has_summaries: whether the step calls `tf.summary`; None before it is traced.
    """

    def __init__(self, plan: StepPlan, stop: StopVariable, *, stride: int = 1, towers: int | None = None) -> None:
        self._plan = plan
        self._iteration = Iteration(plan)
        self._stop = stop
        self._packer = ScalarPacker()
        self._stride = stride
        self.completed = scratch_variable(0, dtype=tf.int64, name="completed")
        self.has_summaries: bool | None = None
        towers = plan.placement.towers if towers is None else towers
        self._call = ConcreteCall(self._run_one if plan.alone else self._run, towers=towers)

    @property
    def graph(self) -> Any:
        """The traced graph, or None before the first call."""
        return self._call.graph

    def trace(self, iterator: Any, n: tf.Tensor) -> None:
        """Trace the loop, unless it is traced already."""
        self._call.trace(iterator, n)

    def __call__(self, iterator: Any, n: tf.Tensor) -> StepResult:
        """Do up to `n` steps."""
        results = self._call(iterator, n)
        return self.on_host(**dict(zip(self._returned, results, strict=True)))

    def on_host(
        self, *, done: Any, waited: Any, single: tf.Tensor, double: tf.Tensor, finite: Any = True, ended: Any = False
    ) -> StepResult:
        """The result of a call from the tensors of its last state."""
        steps, is_finite = int(done), bool(finite)
        return StepResult(
            steps=steps,
            # Without a step there are no scalars, except those of one that was not finite.
            outputs=self._packer.unpack((single, double)) if steps or not is_finite else {},
            is_finite=is_finite,
            data_ended=bool(ended),
            waiting=float(waited),
        )

    def _run(self, iterator: Any, n: tf.Tensor) -> State:
        first = self._first_state()

        def has_more(state: State) -> Any:
            more = (state["done"] < n) & ~self._stop.value
            more = more & state["finite"] if "finite" in state else more
            return more & ~state["ended"] if "ended" in state else more

        shapes = {name: tf.TensorShape([None] if name in ("single", "double") else []) for name in first}
        with noting_summaries() as has_summaries:
            (state,) = tf.while_loop(has_more, self._body(iterator), [first], shape_invariants=[shapes])
        return self._traced(state, has_summaries())

    def _run_one(self, iterator: Any, n: tf.Tensor) -> State:
        """Run one step, whatever `n` is, without a loop: entering one takes about as long as a small step."""
        with noting_summaries() as has_summaries:
            (state,) = self._body(iterator)(self._first_state())
        return self._traced(state, has_summaries())

    def _traced(self, state: State, has_summaries: bool) -> State:
        self.has_summaries = has_summaries
        self._returned = sorted(state)  # the order in which TensorFlow flattens a dict
        return state

    def _first_state(self) -> State:
        # Only what can change: each loop variable costs some ops in every iteration.
        first: State = {"done": tf.constant(0), "waited": tf.zeros([], tf.float64)}
        first |= {"single": tf.zeros([0]), "double": tf.zeros([0], tf.float64)}
        first |= {"finite": tf.constant(True)} if self._plan.guard.may_end else {}
        return first | ({} if self._plan.data.endless else {"ended": tf.constant(False)})

    def _body(self, iterator: Any) -> Callable[[State], list[State]]:
        endless = self._plan.data.endless
        step = partial(self._step, tf.identity(self.completed))

        def body(state: State) -> list[State]:
            begin = _time_after([state["done"]])
            with tf.control_dependencies([begin]):
                batch = next_synchronously(iterator) if endless else iterator.get_next_as_optional()
            took = _time_after(tf.nest.flatten(batch, expand_composites=True)) - begin
            waited = state["waited"] + took

            def iterate(inputs: Batch) -> State:
                after = step(inputs, state["done"], waited)
                return {name: after[name] for name in state}

            if endless:
                return [iterate(batch)]
            ended = {**state, "waited": waited, "ended": tf.constant(True)}
            return [tf.cond(batch.has_value(), lambda: iterate(batch.get_value()), lambda: ended)]

        return body

    def run_watched(self, inputs: Batch, start: tf.Tensor) -> tuple[State, dict[str, tf.Tensor]]:
        """Trace one step that also returns its watched tensors; see `CompiledCalls.run_watched`."""
        watched: dict[str, tf.Tensor] = {}
        state = self._step(start, inputs, tf.constant(0), tf.zeros([], tf.float64), watched)
        return state, watched

    def _step(
        self, start: tf.Tensor, inputs: Batch, done: Any, waited: Any, watched: dict[str, tf.Tensor] | None = None
    ) -> State:
        number = start + tf.cast(done * self._stride, tf.int64)
        outputs, counts, seen = self._iteration(inputs, number, watched=watched is not None)
        if watched is not None:
            watched.update(seen)
        single, double = self._packer.pack(outputs)
        completed = tf.cast(counts, tf.int32) if self._plan.guard.may_end else tf.constant(1)
        # After the update, so that a failing call leaves the number of steps that were completed.
        with tf.control_dependencies([counts, single, double]):
            self.completed.assign_add(tf.cast(completed, tf.int64))
        return {
            "done": done + completed,
            "finite": counts,
            "ended": tf.constant(False),
            "waited": waited,
            "single": single,
            "double": double,
        }


def _time_after(tensors: list[Any]) -> tf.Tensor:
    if is_deterministic():  # TensorFlow refuses to read the clock then, and the waiting time is unknown
        return tf.zeros([], tf.float64)
    with tf.device("CPU:0"), tf.control_dependencies(tensors):
        return tf.timestamp()
