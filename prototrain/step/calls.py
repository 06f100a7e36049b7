"""Compiled calls as Python sees them: how many steps a call has, what it returned, why it failed."""

from __future__ import annotations

import functools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import NonFiniteError, StepError
from prototrain.step.functions import ConcreteCall
from prototrain.step.loop import Batch, CompiledLoop, StepPlan
from prototrain.step.python_summaries import SummaryFile
from prototrain.step.result import StepResult, failed_stage
from prototrain.step.trace import recording
from prototrain.step.variables import CALL_SECONDS, StopVariable
from prototrain.system.tracebacks import cause, source_line


class StepCalls(ABC):
    """Runs the steps of a plan, many in one call. Subclasses decide where the steps run.

    Args:
        plan: what an iteration does.

    Attributes:
        longest: how many steps the next call may have to take about `CALL_SECONDS`, learned from the calls before.
    """

    def __init__(self, plan: StepPlan) -> None:
        self._plan = plan
        self.longest = 1
        self._has_run = False

    @abstractmethod
    def _run(self, iterator: Any, n: int, start: int) -> StepResult:
        """Do up to `n` steps, the first of which follows `start` completed ones."""

    @abstractmethod
    def completed(self) -> int:
        """The number of completed steps, also during a call and after a failed one."""

    @property
    def graph(self) -> Any:
        """The traced graph, or None if there is none yet or none in this process."""
        return None

    @property
    def may_be_watched(self) -> bool:
        """Whether a watched step shows, or may show, more than its scalars."""
        return False

    @property
    def calls_summaries(self) -> bool:
        """Whether the step calls `tf.summary`; traces it, if it is not traced yet."""
        return False

    def run(self, start: int, n: int) -> StepResult:
        """Do up to `n` steps.

        Args:
            start: the number of completed steps.
            n: the number of steps to do.
        """
        begin = time.perf_counter()
        try:
            result = self._run(self._plan.data.iterator, min(n, self.longest), start)
        except tf.errors.OpError as error:
            return self._failed(error, start)
        elapsed = max(time.perf_counter() - begin, 1e-6)
        if not self._has_run:  # a first call spends its time on tracing and says nothing about a step
            self._has_run = True
            result.tracing, result.waiting = elapsed, 0.0
        elif result.steps:
            self.longest = max(1, min(int(CALL_SECONDS / elapsed * result.steps), self.longest * 10))
        return self._checked(result, start)

    def run_watched(self, start: int) -> StepResult:
        """Do one step and return its watched tensors and summary events as well."""
        return self.run(start, 1)

    def _checked(self, result: StepResult, start: int) -> StepResult:
        if not result.is_finite and result.error is None:
            result.error = _non_finite(start + result.steps, result.outputs)
        return result

    def _failed(self, error: tf.errors.OpError, start: int) -> StepResult:
        """The result of a call that raised a TensorFlow error."""
        completed = self.completed()
        shown = self._plan.guard.failed_with(error)
        if shown is not None:
            self._plan.guard.put_back()
            return StepResult(steps=completed - start, is_finite=False, error=_non_finite(completed, shown))
        # Only an iterator that never ends is read without asking first whether there is a batch.
        where = "data" if isinstance(error, tf.errors.OutOfRangeError) else failed_stage(error)
        # A dataset's ops are not in the graph, but other ops there may have their names.
        found = source_line(error, self.graph if where == "model" else None)
        message = f"{cause(error)} ({found})" if found else cause(error)
        failure = StepError(f"step {completed + 1} failed in the {where}: {message}")
        failure.__cause__ = error
        # A failed read leaves every variable as the last completed step left it; a failed model may not.
        return StepResult(steps=completed - start, error=failure, is_whole=where == "data")


class CompiledCalls(StepCalls):
    """Runs all towers of a plan in one compiled loop.

    Args:
        plan: what an iteration does.
        stop: ends a call.
    """

    def __init__(self, plan: StepPlan, stop: StopVariable) -> None:
        super().__init__(plan)
        self._loop = CompiledLoop(plan, stop)
        self._counted = -1  # the value of the loop's counter, where it is known
        self._watched: ConcreteCall | None = None
        self._file: SummaryFile | None = None

    def _run(self, iterator: Any, n: int, start: int) -> StepResult:
        self._count_from(start)
        result = self._loop(iterator, _constant(n))
        self._counted = start + result.steps
        return result

    def _count_from(self, start: int) -> None:
        if start != self._counted:
            self._loop.completed.assign(np.int64(start))
        self._counted = -1  # unknown until the call has returned

    def completed(self) -> int:
        return int(self._loop.completed)

    @property
    def graph(self) -> Any:
        return self._loop.graph

    @property
    def calls_summaries(self) -> bool:
        if not self._plan.may_be_watched:
            return False
        if self._loop.has_summaries is None:
            self._loop.trace(self._plan.data.iterator, _constant(1))
        return bool(self._loop.has_summaries)

    @property
    def may_be_watched(self) -> bool:
        return self._plan.may_be_watched and (bool(self._plan.watched_names) or self._loop.has_summaries is not False)

    def run_watched(self, start: int) -> StepResult:
        if not self._plan.watched_names and not self.calls_summaries:
            return self.run(start, 1)
        data = self._plan.data
        if self._watched is None or self._file is None:
            signature = (dict(data.element_spec), tf.TensorSpec([], tf.int64))
            self._file = SummaryFile()
            self._watched = ConcreteCall(self._trace_watched, signature, towers=self._plan.placement.towers)
        self._count_from(start)
        try:
            batch = data.iterator.get_next_as_optional()
            if batch.has_value():
                found = self._watched(batch.get_value(), tf.constant(np.int64(start)))
                state, tensors = self._watched.pack(found)
                result = self._loop.on_host(**state)
                result.watched, result.summary_events = tensors, self._file.take()
            else:
                result = StepResult(steps=0, data_ended=True)
        except tf.errors.OpError as error:
            return self._failed(error, start)
        self._counted = start + result.steps
        return self._checked(result, start)

    def _trace_watched(self, inputs: Batch, start: tf.Tensor) -> Any:
        assert self._file is not None
        with recording(self._file.writer, start + 1):
            return self._loop.run_watched(inputs, start)


def _non_finite(completed: int, values: Mapping[str, float]) -> NonFiniteError:
    rate_is_finite = math.isfinite(values.get("learning_rate", 0.0))
    what = "the loss or a gradient" if rate_is_finite else "the learning rate"
    shown = ", ".join(f"{name} {value:g}" for name, value in values.items())
    return NonFiniteError(f"{what} is not finite in step {completed + 1} ({shown}); its update was not applied")


@functools.lru_cache(maxsize=1024)
def _constant(n: int) -> tf.Tensor:
    return tf.constant(np.int32(n))  # TensorFlow would cache a tensor for each Python number
