"""Steps as one XLA program per call, for ``model.jit_compile = "loop"``.

The pipeline stacks batches into blocks. A call runs any number of rows of the current block.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.data.batches import Batch
from prototrain.errors import ConfigError
from prototrain.step.calls import ConcreteCall, StepCalls, StepResult, whole_number
from prototrain.step.loop import Iteration, State
from prototrain.step.trace import detect_summaries
from prototrain.system.tracebacks import cause

KEY = 'model.jit_compile: "loop"'


class XlaLoop(StepCalls):
    """Runs the steps of one tower in one XLA program per call.

    The data of the iteration is read in blocks, and its guard must not make the call fail.
    """

    def __init__(self, iteration: Iteration) -> None:
        super().__init__(iteration)
        if iteration.watched_names:
            raise ConfigError(
                f"{KEY} returns scalars only, and a callback watches {', '.join(sorted(iteration.watched_names))}; "
                "use another value, or leave the callback out"
            )
        self._programs: dict[int, ConcreteCall] = {}  # by the number of batches in a block
        self._completed = 0

    def completed(self) -> int:
        return self._completed

    @property
    def graph(self) -> Any:
        return next((program.graph for program in self._programs.values()), None)

    def _run(self, iterator: Any, n: int, start: int) -> StepResult:
        self._completed = start
        begin = time.perf_counter()
        found = self._iteration.data.next_block()
        waiting = time.perf_counter() - begin
        if found is None:
            return StepResult(steps=0, data_ended=True, waiting=waiting)
        block, row, left = found
        arguments = (block, whole_number(row), whole_number(min(n, left)), tf.constant(np.int64(start)))
        done, finite, kept, vectors = self._call(row + left, arguments)
        result = self._result(done=done, scalars=vectors, waited=waiting, finite=finite, kept=kept)
        self._completed = start + result.steps
        return result

    def _call(self, size: int, arguments: tuple[Any, ...]) -> Any:
        if size in self._programs:
            return self._programs[size](*arguments)
        compiled = tf.function(self._program, autograph=False, jit_compile=True)

        def call(*arguments: Any) -> Any:
            self._iteration.guard.begin_call(self._iteration.changed)
            return compiled(*arguments)

        program = ConcreteCall(call)  # XLA compiles functions called inside a graph
        try:
            results = program(*arguments)
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
            if "XLA" not in str(error) and "compil" not in str(error):
                raise
            raise ConfigError(f"{KEY}: XLA cannot compile the step: {cause(error)}; use true, or false") from error
        self._programs[size] = program
        return results

    def _program(self, block: Batch, row: tf.Tensor, n: tf.Tensor, start: tf.Tensor) -> tuple[Any, ...]:
        """Run the steps of a call; traced."""

        def one_step(inputs: Batch, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            outputs, counts, _ = self._iteration(inputs, step)
            return counts, self._packer.pack(outputs)

        # Trace one step first: the variables of an XLA loop need static shapes, and the step determines the scalars.
        step_function = tf.function(one_step, autograph=False)
        specs = tf.nest.map_structure(lambda stacked: tf.TensorSpec(stacked.shape[1:], stacked.dtype), block)
        with detect_summaries() as has_summaries:
            traced = step_function.get_concrete_function(specs, tf.TensorSpec([], tf.int64))
        if has_summaries():
            raise ConfigError(f"{KEY} cannot record tf.summary, which the step calls; use another value")
        _, vector = traced.structured_outputs
        size = tf.nest.flatten(block)[0].shape[0]
        rows = tf.TensorArray(vector.dtype, size, element_shape=vector.shape, clear_after_read=False)
        first = {"done": tf.constant(0), "finite": tf.constant(True), "rows": rows}

        def body(state: State) -> list[State]:
            place = row + state["done"]
            # Not stacked[place]: XLA would compile a slice for each value of `row`.
            inputs = tf.nest.map_structure(lambda stacked: tf.gather(stacked, place), block)
            counts, vector = step_function(inputs, start + tf.cast(state["done"], tf.int64))
            rows = state["rows"].write(state["done"], vector)
            return [{"done": state["done"] + tf.cast(counts, tf.int32), "finite": counts, "rows": rows}]

        (state,) = tf.while_loop(lambda state: (state["done"] < n) & state["finite"], body, [first])
        counts = self._iteration.guard.end_call(state["finite"])
        return state["done"], state["finite"], counts, state["rows"].stack()
