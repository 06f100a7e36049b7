"""Many training steps in one compiled call, as Python sees it: how many, what came out, what went wrong."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from prototrain.errors import NonFiniteError, StepError
from prototrain.step.call_length import CallLength
from prototrain.step.loop import CompiledLoop
from prototrain.step.packing import Packing
from prototrain.step.plan import StepPlan
from prototrain.step.result import Outcome, StepFailure, StepResult, stage
from prototrain.step.stop_variable import StopVariable
from prototrain.step.watched import Seen, WatchedStep
from prototrain.system.tracebacks import cause, source_line


class Runner(Protocol):
    """How the steps of a call come to run."""

    def run(self, iterator: Any, n: int, start: int) -> Outcome:
        """Do up to `n` steps, the first of which follows `start` completed ones."""

    def completed(self) -> int:
        """The number of completed steps, also after a failed run."""

    def watch(self, start: int) -> Seen:
        """Do one step, and show more of it than its scalars."""

    def has_summaries(self, iterator: Any) -> bool:
        """Whether the step has `tf.summary` calls; traces it, if it is not traced yet."""

    @property
    def graph(self) -> Any:
        """What was traced, or None."""


class OneLoop:
    """All towers in one loop.

    Args:
        plan: what an iteration is.
        stop: ends the loop.
        packing: takes the scalars apart.
    """

    def __init__(self, plan: StepPlan, stop: StopVariable, packing: Packing) -> None:
        self._plan = plan
        self._loop = CompiledLoop(plan, stop, packing)
        self._counted = -1  # the value of the loop's variable, where it is known
        self._watched: WatchedStep | None = None

    def run(self, iterator: Any, n: int, start: int) -> Outcome:
        self._count_from(start)
        outcome = self._loop(iterator, _constant(n))
        self._counted = start + outcome.done
        return outcome

    def watch(self, start: int) -> Seen:
        self._count_from(start)
        if self._watched is None:
            self._watched = WatchedStep(self._plan.data, self._loop.run_watched, self._plan.placement.towers)
        seen = self._watched(start)
        self._counted = start + seen.outcome.done
        return seen

    def _count_from(self, start: int) -> None:
        if start != self._counted:
            self._loop.completed.assign(np.int64(start))
        self._counted = -1  # not known until the call has come back

    def completed(self) -> int:
        return int(self._loop.completed)

    def has_summaries(self, iterator: Any) -> bool:
        if self._loop.has_summaries is None:
            self._loop.trace(iterator, _constant(1))
        return bool(self._loop.has_summaries)

    @property
    def graph(self) -> Any:
        return self._loop.graph


class CompiledCall:
    """Calls of many steps.

    Args:
        plan: what an iteration is.
        stop: ends a call.
        packing: takes the scalars apart.
        runner: how the steps come to run; by default all towers in one loop.
    """

    def __init__(
        self, plan: StepPlan, stop: StopVariable, packing: Packing | None = None, runner: Runner | None = None
    ) -> None:
        self._plan = plan
        self._packing = Packing() if packing is None else packing
        self._runner: Runner = OneLoop(plan, stop, self._packing) if runner is None else runner
        self._length = CallLength()
        self._silent: bool | None = None  # whether a watched step has nothing to show; not known before it is traced

    @property
    def longest(self) -> int:
        """How many steps the next call may have."""
        return self._length.limit

    @property
    def graph(self) -> Any:
        """What was traced, or None before the first call."""
        return self._runner.graph

    @property
    def leaves_summaries(self) -> bool:
        """Whether the step, which is traced, calls `tf.summary`."""
        return self._plan.may_be_watched and self._runner.has_summaries(self._plan.data.iterator)

    def completed(self) -> int:
        """The number of completed steps, also while a call is under way."""
        return self._runner.completed()

    def run(self, start: int, n: int) -> StepResult:
        """Do up to `n` steps.

        Args:
            start: the number of completed steps.
            n: how many.

        Raises:
            StepFailure: a step failed, or was not finite.
        """
        self._length.start()
        return self._run(start, n)

    def run_watched(self, start: int) -> StepResult:
        """Do one step, and hand out its watched tensors and summary events, if it has any.

        Raises:
            StepFailure: as `run`.
        """
        self._length.start()
        if not self._shows_something():
            return self._run(start, 1)
        try:
            seen = self._runner.watch(start)
        except tf.errors.OpError as error:
            raise self._failure(error, start) from None
        return self._result(seen.outcome, start, watched=seen.tensors, summary_events=seen.events)

    @property
    def may_be_watched(self) -> bool:
        """Whether there is, or may be, anything to see in a watched step."""
        return self._plan.may_be_watched and self._silent is not True

    def _shows_something(self) -> bool:
        if self._silent is None:
            has_summaries = self._runner.has_summaries(self._plan.data.iterator)
            self._silent = not (self._plan.watched_names or has_summaries)
        return not self._silent

    def _run(self, start: int, n: int) -> StepResult:
        try:
            outcome = self._runner.run(self._plan.data.iterator, min(n, self._length.limit), start)
        except tf.errors.OpError as error:
            raise self._failure(error, start) from None
        tracing = self._length.finish(outcome.done)
        return self._result(outcome, start, tracing=tracing, waiting=0.0 if tracing else outcome.waited)

    def _result(self, outcome: Outcome, start: int, **more: Any) -> StepResult:
        steps, is_finite = outcome.done, outcome.finite
        # Without a step there are no scalars either, except for those of one that did not count.
        outputs = self._packing.unpack((outcome.single, outcome.double)) if steps or not is_finite else {}
        if not is_finite:
            raise StepFailure(_non_finite(start + steps, outputs), StepResult(steps=steps, **more), is_whole=True)
        return StepResult(steps=steps, outputs=outputs, data_ended=outcome.ended, **more)

    def _failure(self, error: tf.errors.OpError, start: int) -> StepFailure:
        """What has become of a call that raised an error of TensorFlow."""
        completed = self._runner.completed()
        done = StepResult(steps=completed - start)
        shown = self._plan.guard.failed_with(error)
        if shown is not None:
            self._plan.guard.put_back()
            return StepFailure(_non_finite(completed, shown), done, is_whole=True)
        # Only an iterator that should never end is read without asking first whether there is a batch.
        where = "data" if isinstance(error, tf.errors.OutOfRangeError) else stage(error)
        # A dataset's ops are not in the graph, but others there may have their names.
        found = source_line(error, self.graph if where == "model" else None)
        said = f"{cause(error)} ({found})" if found else cause(error)
        failure = StepError(f"step {completed + 1} failed in the {where}: {said}")
        failure.__cause__ = error
        # A failed read leaves every variable as the last completed step left it; a failed model may not.
        return StepFailure(failure, done, is_whole=where == "data")


def _non_finite(completed: int, values: Mapping[str, float]) -> NonFiniteError:
    rate_is_finite = math.isfinite(values.get("learning_rate", 0.0))
    what = "the loss or a gradient" if rate_is_finite else "the learning rate"
    shown = ", ".join(f"{name} {value:g}" for name, value in values.items())
    return NonFiniteError(f"{what} is not finite in step {completed + 1} ({shown}); its update was not applied")


@functools.lru_cache(maxsize=1024)
def _constant(n: int) -> tf.Tensor:
    # TensorFlow keeps every Python number that it has made a tensor of, for ever; not those of NumPy.
    return tf.constant(np.int32(n))
