"""Many iterations as one traced loop over the batches of an iterator.

The loop ends after the number of steps that was asked for, when the data ends, when a stop is requested, and at the
very step whose loss or gradient is not finite. Where a callback runs after every step it is one iteration without a
loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from prototrain.private_api.runtime import is_deterministic
from prototrain.step.direct_call import DirectCall
from prototrain.step.iteration import Iteration
from prototrain.step.packing import Packing
from prototrain.step.plan import Batch, StepPlan
from prototrain.step.result import Outcome
from prototrain.step.scratch import scratch_variable
from prototrain.step.stop_variable import StopVariable
from prototrain.step.watched import noting_summaries

State = dict[str, Any]  # what one iteration hands over to the next, by name


class CompiledLoop:
    """The iterations of a plan, many in one call.

    Args:
        plan: what an iteration is.
        stop: ends the loop.
        packing: knows what the scalars of an `Outcome` are called.
        stride: by how much the number of the step grows from one iteration to the next.
        towers: on how many towers it runs; the default is the plan's number.

    Attributes:
        completed: an int64 variable, the number of completed steps, which is right also after a failed call.
        has_summaries: whether the step has `tf.summary` calls; None as long as it is not known.
    """

    def __init__(
        self, plan: StepPlan, stop: StopVariable, packing: Packing, *, stride: int = 1, towers: int | None = None
    ) -> None:
        self._plan = plan
        self._iteration = Iteration(plan)
        self._stop = stop
        self._packing = packing
        self._stride = stride
        self.completed = scratch_variable(0, dtype=tf.int64, name="completed")
        self.has_summaries: bool | None = None
        towers = plan.placement.towers if towers is None else towers
        self._call = DirectCall(self._run_one if plan.alone else self._run, towers=towers)

    @property
    def graph(self) -> Any:
        """What was traced, or None."""
        return self._call.graph

    def trace(self, iterator: Any, n: tf.Tensor) -> None:
        """Trace it now, if it is not yet."""
        self._call.trace(iterator, n)

    def __call__(self, iterator: Any, n: tf.Tensor) -> Outcome:
        """Do up to `n` steps."""
        results = self._call(iterator, n)
        return Outcome.on_host(**dict(zip(self._returned, results, strict=True)))

    def _run(self, iterator: Any, n: tf.Tensor) -> State:
        first = self._first_state()

        def goes_on(state: State) -> Any:
            more = (state["done"] < n) & ~self._stop.value
            more = more & state["finite"] if "finite" in state else more
            return more & ~state["ended"] if "ended" in state else more

        shapes = {name: tf.TensorShape([None] if name in ("single", "double") else []) for name in first}
        with noting_summaries() as has_summaries:
            (state,) = tf.while_loop(goes_on, self._body(iterator), [first], shape_invariants=[shapes])
        return self._traced(state, has_summaries())

    def _run_one(self, iterator: Any, n: tf.Tensor) -> State:
        """Run one step, whatever `n` is, without a loop: to enter one takes about as long as a small step."""
        with noting_summaries() as has_summaries:
            (state,) = self._body(iterator)(self._first_state())
        return self._traced(state, has_summaries())

    def _traced(self, state: State, has_summaries: bool) -> State:
        self.has_summaries = has_summaries
        self._returned = sorted(state)  # as TensorFlow orders what is in a dict
        return state

    def _first_state(self) -> State:
        # Only what can change is carried along: every variable of a loop costs some ops in every iteration.
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
                batch = next(iterator) if endless else iterator.get_next_as_optional()
            took = _time_after(tf.nest.flatten(batch, expand_composites=True)) - begin
            waited = state["waited"] + took

            def go_on(inputs: Batch) -> State:
                after = step(inputs, state["done"], waited)
                return {name: after[name] for name in state}

            if endless:
                return [go_on(batch)]
            ended = {**state, "waited": waited, "ended": tf.constant(True)}
            return [tf.cond(batch.has_value(), lambda: go_on(batch.get_value()), lambda: ended)]

        return body

    def run_watched(self, inputs: Batch, start: tf.Tensor) -> tuple[State, dict[str, tf.Tensor]]:
        """Trace one step of which more is seen than its scalars; see `WatchedStep`."""
        seen: dict[str, tf.Tensor] = {}
        state = self._step(start, inputs, tf.constant(0), tf.zeros([], tf.float64), seen)
        return state, seen

    def _step(
        self, start: tf.Tensor, inputs: Batch, done: Any, waited: Any, seen: dict[str, tf.Tensor] | None = None
    ) -> State:
        number = start + tf.cast(done * self._stride, tf.int64)
        iterated = self._iteration(inputs, number, watched=seen is not None)
        if seen is not None:
            seen.update(iterated.seen)
        single, double = self._packing.pack(iterated.outputs)
        completed = tf.cast(iterated.counts, tf.int32) if self._plan.guard.may_end else tf.constant(1)
        # Behind the update, so that a failing call leaves the number of steps that were really made.
        with tf.control_dependencies([iterated.counts, single, double]):
            self.completed.assign_add(tf.cast(completed, tf.int64))
        return {
            "done": done + completed,
            "finite": iterated.counts,
            "ended": tf.constant(False),
            "waited": waited,
            "single": single,
            "double": double,
        }


def _time_after(tensors: list[Any]) -> tf.Tensor:
    if is_deterministic():  # TensorFlow refuses to tell the time then, and how long a batch took is not known
        return tf.zeros([], tf.float64)
    with tf.device("CPU:0"), tf.control_dependencies(tensors):
        return tf.timestamp()
