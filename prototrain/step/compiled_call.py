"""Many training steps in one compiled call.

The call is a `tf.while` over the batches of an iterator. It ends after the number of steps that the loop asked for,
when the data ends, when a stop is requested, and at the very step whose loss or gradient is not finite. Where a
callback runs after every step, the call is one step without a loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from prototrain.errors import NonFiniteError, StepError
from prototrain.step.calls import CallLength, StopVariable, stage
from prototrain.step.direct_call import DirectCall
from prototrain.step.iteration import Iteration, behind
from prototrain.step.watched import WatchedStep, noting_summaries
from prototrain.system.tracebacks import cause, place

if TYPE_CHECKING:
    from prototrain.trainers.tower import TowerTrainer

State = dict[str, Any]  # what one iteration hands over to the next, by name


class CompiledSteps(Iteration):
    """The compiled call of a tower trainer.

    Args:
        trainer: whose iterations it makes.
    """

    def __init__(self, trainer: TowerTrainer) -> None:
        super().__init__(trainer)
        self._length = CallLength()
        self._stop = StopVariable()
        self._completed = tf.Variable(trainer.global_step, dtype=tf.int64, trainable=False, name="completed")
        self._counted = trainer.global_step  # the value of that variable, where it is known
        self._ahead = False
        self._stride = 1  # by how much the number of the step grows from one iteration to the next
        self._watched_call: WatchedStep | None = None
        self._has_summaries: bool | None = None  # not known before the first trace
        # With several towers a loop's convolutions may differ in the last bits from those of a step outside of one.
        alone = trainer.towers == 1 and (trainer.overrides_run_step or trainer.callbacks.each_step)
        self._call: Any = DirectCall(self._run_one if alone else self._run, towers=trainer.towers)
        # A step in Python is a call of one step, which is as short as it can be.
        trainer.stop.listeners[:] = [] if trainer.overrides_run_step else [self._stop.set]

    # -- on the host --------------------------------------------------------------------------------------------------

    def run(self, n: int, *, watched: bool = False) -> int:
        """Do up to `n` steps.

        Args:
            n: how many.
            watched: of a single step: leave what callbacks watch in `trainer.watched` and `trainer.summary_events`.

        Returns:
            how many were done.

        Raises:
            StepError: an op failed; `trainer.global_step` counts the steps that were completed before.
            NonFiniteError: a loss or gradient is not finite; its update was not applied.
            StopTraining: there is no more data.
        """
        trainer = self._trainer
        start = trainer.global_step
        if start != self._counted:
            self._completed.assign(np.int64(start))
        self._counted = -1  # not known until the call has come back
        n = min(n, self._length.limit)
        self._length.start()
        arguments = (trainer.data.iterator, _constant(n))
        watched_call = self._prepare_watched(arguments) if watched else None
        trainer.watched, trainer.summary_events = {}, []
        try:
            if not trainer.data.catch_up(self._stop_requested):
                return 0
            outcome = self._call(*arguments) if watched_call is None else watched_call(tf.constant(np.int64(start)))
            done, finite, ended, waited, *vectors = outcome
        except tf.errors.OutOfRangeError as error:
            # Only an iterator that should never end is read without asking first whether there is a batch.
            self._fail(error, start, where="data")
        except tf.errors.OpError as error:
            shown = None if self._failing is None else self._failing.failed_with(error)
            if self._failing is not None and shown is not None:
                self._take_count(start)
                self._failing.put_back()
                raise self._non_finite(shown) from None
            self._fail(error, start, where=stage(error))
        steps = int(done)
        if watched_call is None:
            traced = self._length.finish(steps)
            trainer.times.tracing += traced
            trainer.times.steps -= traced  # which the loop counts as a whole
            trainer.times.input += float(waited) if not traced else 0.0
        trainer.data.count(steps)
        trainer.global_step = self._counted = start + steps
        if not finite:
            self._ahead = True
            values = self._packing.unpack((vectors[0], vectors[1]))
            raise self._non_finite(", ".join(f"{name} {value:g}" for name, value in values.items()))
        if steps:
            trainer.outputs = self._packing.unpack((vectors[0], vectors[1]))
        elif ended:
            trainer.data.start_next_pass()
        return steps

    def _stop_requested(self) -> bool:
        return self._trainer.stop.signum is not None and not self._trainer.overrides_run_step

    @property
    def longest_call(self) -> int:
        """How many steps the next call may have."""
        return self._length.limit

    def read_ahead(self) -> None:
        """Take note that the data position is beyond the completed steps."""
        self._ahead = True

    @property
    def can_be_watched(self) -> bool:
        """Whether there is, or may be, anything to see in a watched step."""
        return bool(self._trainer.callbacks.watched_names) or self._has_summaries is not False

    def _prepare_watched(self, arguments: tuple[Any, ...]) -> WatchedStep | None:
        if self._has_summaries is None:
            self._call.trace(*arguments)
        if not self.can_be_watched:
            return None
        if self._watched_call is None:
            self._watched_call = WatchedStep(self._trainer, self._run_watched)
        return self._watched_call

    def settle(self) -> None:
        """Bring the data position back to the last completed step, if a failed step has read on."""
        if self._ahead:
            self._trainer.data.rewind()
            self._ahead = False

    def _fail(self, error: Exception, start: int, *, where: str) -> None:
        trainer = self._trainer
        self._take_count(start)
        # A failed read leaves every variable as the last completed step left it; a failed model may not.
        trainer.step_is_whole = where == "data"
        # A dataset's ops are not in the graph, but others there may have their names.
        graph = self._call.graph if where == "model" and isinstance(self._call, DirectCall) else None
        found = place(error, graph)
        said = f"{cause(error)} ({found})" if found else cause(error)
        raise StepError(f"step {trainer.global_step + 1} failed in the {where}: {said}") from error

    def _take_count(self, start: int) -> None:
        """Take over how many steps a failed call has completed; it has read at least one batch more."""
        self._trainer.global_step = int(self._completed)
        self._trainer.data.count(self._trainer.global_step - start)
        self._ahead = True

    def _non_finite(self, values: str) -> NonFiniteError:
        self._trainer.step_is_whole = True
        step = self._trainer.global_step + 1
        return NonFiniteError(
            f"the loss or a gradient is not finite in step {step} ({values}); its update was not applied"
        )

    # -- traced -------------------------------------------------------------------------------------------------------

    def _run(self, iterator: Any, n: tf.Tensor) -> tuple[tf.Tensor, ...]:
        first = self._first_state()

        def goes_on(state: State) -> Any:
            more = (state["done"] < n) & ~self._stop.value
            more = more & state["finite"] if "finite" in state else more
            return more & ~state["ended"] if "ended" in state else more

        shapes = {name: tf.TensorShape([None] if name in ("single", "double") else []) for name in first}
        with noting_summaries() as has_summaries:
            (state,) = tf.while_loop(goes_on, self._body(iterator), [first], shape_invariants=[shapes])
        self._has_summaries = has_summaries()
        return _outcome(state)

    def _run_one(self, iterator: Any, n: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Run one step, whatever `n` is, without a loop: to enter one takes about as long as a small step."""
        with noting_summaries() as has_summaries:
            (state,) = self._body(iterator)(self._first_state())
        self._has_summaries = has_summaries()
        return _outcome(state)

    def _first_state(self) -> State:
        # Only what can change is carried along: every variable of a loop costs some ops in every iteration.
        first: State = {"done": tf.constant(0), "waited": tf.zeros([], tf.float64)}
        first |= {"single": tf.zeros([0]), "double": tf.zeros([0], tf.float64)}
        first |= {} if self._failing is not None else {"finite": tf.constant(True)}
        return first | ({} if self._trainer.data.endless else {"ended": tf.constant(False)})

    def _body(self, iterator: Any) -> Callable[[State], list[State]]:
        endless = self._trainer.data.endless
        step = partial(self._step, tf.identity(self._completed))

        def body(state: State) -> list[State]:
            begin = _time_after([state["done"]])
            with tf.control_dependencies([begin]):
                batch = next(iterator) if endless else iterator.get_next_as_optional()
            took = _time_after(tf.nest.flatten(batch, expand_composites=True)) - begin
            waited = state["waited"] + took

            def go_on(inputs: dict[str, Any]) -> State:
                after = step(inputs, state["done"], waited)
                return {name: after[name] for name in state}

            if endless:
                return [go_on(batch)]
            ended = {**state, "waited": waited, "ended": tf.constant(True)}
            return [tf.cond(batch.has_value(), lambda: go_on(batch.get_value()), lambda: ended)]

        return body

    def _run_watched(self, inputs: dict[str, Any], start: tf.Tensor) -> tuple[tuple[Any, ...], dict[str, tf.Tensor]]:
        self._watching = frozenset(self._trainer.callbacks.watched_names)
        try:
            return _outcome(self._step(start, inputs, tf.constant(0), tf.zeros([], tf.float64))), self._seen
        finally:
            self._watching = None

    def _step(self, start: tf.Tensor, inputs: dict[str, Any], done: Any, waited: Any) -> State:
        with behind(inputs):
            outputs, finite = self._iterate(inputs, start + tf.cast(done * self._stride, tf.int64))
        single, double = self._packing.pack(outputs)
        completed = tf.constant(1) if self._failing is not None else tf.cast(finite, tf.int32)
        # Behind the update, so that a failing call leaves the number of steps that were really made.
        with tf.control_dependencies([finite, single, double]):
            self._completed.assign_add(tf.cast(completed, tf.int64))
        return {
            "done": done + completed,
            "finite": finite,
            "ended": tf.constant(False),
            "waited": waited,
            "single": single,
            "double": double,
        }


def _outcome(state: State) -> tuple[tf.Tensor, ...]:
    """What a call returns; see `CompiledSteps.run`."""
    state = {"finite": tf.constant(True), "ended": tf.constant(False), **state}
    return tuple(state[name] for name in ("done", "finite", "ended", "waited", "single", "double"))


def _time_after(tensors: list[Any]) -> tf.Tensor:
    with tf.device("CPU:0"), tf.control_dependencies(tensors):
        return tf.timestamp()


@functools.lru_cache(maxsize=1024)
def _constant(n: int) -> tf.Tensor:
    # TensorFlow keeps every Python number that it has made a tensor of, for ever; not those of NumPy.
    return tf.constant(np.int32(n))
