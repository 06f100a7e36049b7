"""Compiled calls of many steps: their length, their results and their errors."""

from __future__ import annotations

import functools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from prototrain.errors import ModelError, NonFiniteError, PrototrainError, StepError
from prototrain.step.variables import CALL_SECONDS
from prototrain.system.tracebacks import cause, failed_stage, source_line
from prototrain.tf_private import captures_vary

if TYPE_CHECKING:
    from prototrain.step.loop import Iteration


@functools.lru_cache(maxsize=1024)
def whole_number(n: int) -> tf.Tensor:
    """Return an int32 scalar. It is cached, since making one takes as long as several ops."""
    return tf.constant(np.int32(n))  # not of a Python number, for which TensorFlow would cache a tensor, too


class ConcreteCall:
    """A function that is traced once and then called by a single op.

    The Python code of `tf.function` around that op takes longer than a small training step, which matters if a callback
    runs after every step. With several towers `tf.function` makes the call, since one op cannot be on all devices.
    """

    def __init__(self, function: Callable[..., Any], *, towers: int = 1) -> None:
        self._function = tf.function(function, autograph=False)
        self._towers = towers
        self._traced: Any = None
        self._captured: list[tf.Tensor] | None = None  # None if they differ from call to call

    @property
    def graph(self) -> Any:
        """The traced graph, or None before the first call."""
        return None if self._traced is None else self._traced.graph

    def trace(self, *arguments: Any) -> None:
        """Trace the function if it is not traced yet."""
        if self._traced is None:
            self._traced = self._function.get_concrete_function(*arguments)
            self._types = [tensor.dtype for tensor in self._traced.outputs]
            self._captured = None if captures_vary(self._traced) else self._traced.captured_inputs

    def __call__(self, *arguments: Any) -> list[tf.Tensor]:
        """Run the function and return its results as a flat list."""
        self.trace(*arguments)
        if self._towers > 1:
            return list(tf.nest.flatten(self._traced(*arguments)))
        captured = self._traced.captured_inputs if self._captured is None else self._captured
        inputs = [*tf.nest.flatten(arguments, expand_composites=True), *captured]
        results: list[tf.Tensor] = tf.raw_ops.StatefulPartitionedCall(args=inputs, Tout=self._types, f=self._traced)
        return results


MOST_STEPS = 1024
"""Maximum number of steps in a call, whose scalars are stored until it ends."""


@dataclass(kw_only=True, slots=True)
class StepResult:
    """The result of a call of many steps."""

    steps: int  # that were completed
    scalars: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of each completed step, by name
    outputs: Mapping[str, float] = field(default_factory=dict)  # scalars of the last step, or of the non-finite one
    is_finite: bool = True  # False if the call ended at a non-finite step, whose update was not applied
    is_undone: bool = False  # whether a step was not finite and the call was undone; then nothing else is set
    data_ended: bool = False
    watched: Mapping[str, Any] = field(default_factory=dict)  # tensors of the last step, if it was watched
    summary_events: Sequence[Any] = ()  # of `tf.summary` calls in the last step, if it was watched
    waiting: float = 0.0  # seconds spent waiting for batches
    tracing: float = 0.0  # seconds of a first call, which is mostly tracing; otherwise 0
    error: PrototrainError | None = None  # of the step after the completed ones
    is_whole: bool = True  # whether the variables have the values of the last completed step


class ScalarPacker:
    """Packs the scalars of a step into one float64 vector, to copy them to the host at once."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def pack(self, outputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Return a float64 vector of float32 and float64 scalars; traced."""
        # All float32 scalars are converted by one op.
        single = {name: value for name, value in outputs.items() if value.dtype == tf.float32}
        double = {name: value for name, value in outputs.items() if name not in single}
        self._names = [*single, *double]
        parts = [tf.cast(tf.stack(list(part.values())), tf.float64) for part in (single, double) if part]
        return tf.concat(parts, 0) if parts else tf.zeros([0], tf.float64)

    def unpack(self, vectors: tf.Tensor) -> dict[str, list[float]]:
        """Copy the scalars of one or several steps to the host, from a packed vector or rows of them."""
        if not self._names:
            return {}
        rows = vectors.numpy().reshape(-1, len(self._names))
        return dict(zip(self._names, rows.T.tolist(), strict=True))


def as_scalar(name: str, value: Any) -> tf.Tensor:
    """Return a scalar of a step as a float32 or float64 tensor; raises a `ModelError` for other shapes."""
    tensor = tf.convert_to_tensor(value)
    if tensor.shape.rank != 0:
        raise ModelError(f"a step's outputs must be scalars; {name!r} has shape {tensor.shape}")
    return tensor if tensor.dtype == tf.float32 else tf.cast(tensor, tf.float64)


class StepCalls(ABC):
    """Runs many iterations in one call. Subclasses define where they run."""

    has_summaries: bool | None = False  # whether a watched step would record `tf.summary`; None before tracing

    def __init__(self, iteration: Iteration) -> None:
        self._iteration = iteration
        self._packer = ScalarPacker()
        self.max_steps = 1  # maximum number of steps of the next call, to take about `CALL_SECONDS`
        self._has_run = False

    @abstractmethod
    def _run(self, iterator: Any, n: int, start: int) -> StepResult:
        """Run up to `n` steps like `run`; may raise a `tf.errors.OpError`."""

    @abstractmethod
    def completed(self) -> int:
        """Return the number of completed steps; correct during a call and after a failed call."""

    def scalars_so_far(self, steps: int) -> Mapping[str, Sequence[float]]:
        """Return the scalars of the first `steps` steps of a failed call."""
        return {}

    @property
    def graph(self) -> Any:
        """The traced graph, or None before tracing."""
        return None

    @property
    def may_be_watched(self) -> bool:
        """Whether a watched step may return more than its scalars."""
        return False

    def run(self, start: int, n: int) -> StepResult:
        """Run up to `n` steps after `start` completed ones."""
        begin = time.perf_counter()
        try:
            result = self._run(self._iteration.data.iterator, min(n, self.max_steps), start)
        except tf.errors.OpError as error:
            return self._failed(error, start)
        elapsed = max(time.perf_counter() - begin, 1e-6)
        if not self._has_run:  # a first call is mostly tracing
            self._has_run = True
            result.tracing, result.waiting = elapsed, 0.0
        elif result.steps:
            self.max_steps = max(1, min(int(CALL_SECONDS / elapsed * result.steps), self.max_steps * 10, MOST_STEPS))
        return self._checked(result, start)

    def run_watched(self, start: int) -> StepResult:
        """Run one step and also return its watched tensors and summary events."""
        return self.run(start, 1)

    def _result(
        self, *, done: Any, scalars: Any, waited: Any, finite: Any = True, kept: Any = True, ended: Any = False
    ) -> StepResult:
        """Return the result of a call from its tensors; `scalars` are packed, of one step or of several."""
        steps, is_finite = int(done), bool(finite)
        found, last = self._packer.unpack(scalars), steps - 1 if is_finite else steps
        return StepResult(
            steps=steps,
            scalars={name: values[:steps] for name, values in found.items()},
            # A call without a completed step has scalars only if a step was not finite.
            outputs={name: values[last] for name, values in found.items()} if last >= 0 else {},
            is_finite=is_finite,
            is_undone=self._iteration.guard.undoes_calls and not kept,
            data_ended=bool(ended),
            waiting=float(waited),
        )

    def _checked(self, result: StepResult, start: int) -> StepResult:
        if result.is_undone:
            self._iteration.guard.restore()
            return StepResult(steps=0, is_undone=True)
        if not result.is_finite:
            result.error = _non_finite(start + result.steps, result.outputs)
        return result

    def _failed(self, error: tf.errors.OpError, start: int) -> StepResult:
        """Return the result of a call that raised a TensorFlow error."""
        if self._iteration.guard.undoes_calls and not self._iteration.guard.end_call():
            return self._checked(StepResult(steps=0, is_undone=True), start)
        completed = self.completed()
        steps = completed - start
        scalars = self.scalars_so_far(steps) if steps else {}
        shown = self._iteration.guard.failed_with(error)
        if shown is not None:
            self._iteration.guard.restore()
            return StepResult(steps=steps, scalars=scalars, is_finite=False, error=_non_finite(completed, shown))
        # Only an endless iterator is read without checking for its end first.
        where = "data" if isinstance(error, tf.errors.OutOfRangeError) else failed_stage(error)
        # Ops of a dataset are not in the graph, but ops in the graph may have the same names.
        found = source_line(error, self.graph if where == "model" else None)
        message = f"{cause(error)} ({found})" if found else cause(error)
        failure = StepError(f"step {completed + 1} failed in the {where}: {message}")
        failure.__cause__ = error
        # A failed read leaves the variables unchanged since the last completed step; a failed model may not.
        return StepResult(steps=steps, scalars=scalars, error=failure, is_whole=where == "data")


def _non_finite(completed: int, values: Mapping[str, float]) -> NonFiniteError:
    rate_is_finite = math.isfinite(values.get("learning_rate", 0.0))
    what = "the loss or a gradient is not finite" if rate_is_finite else "the learning rate is negative or not finite"
    shown = ", ".join(f"{name} {value:g}" for name, value in values.items())
    return NonFiniteError(f"{what} in step {completed + 1} ({shown}); its update was not applied")
