"""Where XLA is used: nowhere, in the forward pass and the gradients, or for whole calls.

XLA pays on some models and costs on others, and on one machine other than on the next, so ``model.jit_compile =
"auto"`` tries all forms on the first batch. The choice belongs to the run: its checkpoints and run.json have it, since
random layers may draw other numbers in XLA, and a resumed run must draw the same ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import tensorflow as tf

from prototrain.checkpoint.values import random_state_kept
from prototrain.model.evaluation import values_kept
from prototrain.system.tracebacks import cause
from prototrain.system.waiting import announcing

Choice = bool | Literal["loop"]
"""False: no XLA. True: the forward pass and the gradients. "loop": whole calls, see `XlaLoop`."""

RECORDED_AS = "jit_compile"  # among the facts of a checkpoint
MARGIN = 0.05  # a form that is faster by less is not worth the seconds that XLA compiles
BLOCK = 8  # batches that the timed steps read in turns
CALL_SECONDS = 0.05  # that a timed call is to take
LONGEST_CALL = 64  # steps
ROUNDS = 15  # calls of each form that are timed, in turns
BUDGET = 4.0  # seconds after which slow models are not timed any longer
_IN_WORDS = {False: "no XLA", True: "XLA for each step", "loop": "XLA for whole calls"}
Step = Callable[[Any], list[Any]]


class XlaChoice:
    """Says where XLA is used.

    Args:
        setting: ``model.jit_compile``.
        log: prints a line for the user.
        clock: seconds, for measuring.
    """

    def __init__(
        self,
        setting: Choice | Literal["auto"],
        log: Callable[[str], None] = print,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.is_measured = setting == "auto"
        self._chosen: Choice | None = None if setting == "auto" else setting
        self._log, self._clock = log, clock

    @property
    def in_step(self) -> bool:
        """Whether the forward pass and the gradients are compiled by themselves."""
        return self._chosen is True

    @property
    def in_loop(self) -> bool:
        """Whether whole calls are compiled."""
        return self._chosen == "loop"

    def recorded(self) -> dict[str, Choice]:
        """What a checkpoint records of a choice that was measured."""
        return {RECORDED_AS: self._chosen} if self.is_measured and self._chosen is not None else {}

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Take over what an earlier part of the run has measured, if it has."""
        then = facts.get(RECORDED_AS)
        if self.is_measured and then in (False, True, "loop"):
            self._chosen = then

    def leave_off(self, reason: str) -> None:
        """Choose without having measured."""
        if self._chosen is None:
            self._chosen = False
            self._log(f"model.jit_compile: auto leaves XLA off, because {reason}")

    def measure(
        self, step: Callable[[bool], Step], batch: Any, *, with_loop: bool, variables: Iterable[Any] = ()
    ) -> None:
        """Choose what takes the least time, if nothing is chosen yet, and print it.

        Args:
            step: makes the step to be timed, with XLA or without; from a batch to tensors; traced.
            batch: what it is called with.
            with_loop: whether "loop" may be chosen.
            variables: those that a step changes; they get their values back.
        """
        if self._chosen is not None:
            return
        forms = {
            choice: _form(step(choice is True), is_loop=with_loop, with_xla=choice == "loop")
            for choice in (False, True, *(("loop",) if with_loop else ()))
        }
        block = tf.nest.map_structure(lambda value: tf.stack([value] * BLOCK), batch) if with_loop else batch

        def call(choice: Choice, steps: int) -> None:
            forms[choice](block, tf.constant(steps)).numpy()  # which waits for the device

        def seconds(choice: Choice, steps: int) -> float:
            begin = self._clock()
            call(choice, steps)
            return self._clock() - begin

        with (
            random_state_kept(),
            announcing("trying the step with XLA and without", self._log),
            values_kept(variables),
        ):
            for choice in list(forms):
                try:
                    call(choice, 1)  # compiles
                except tf.errors.OpError as error:
                    if not choice:
                        return self.leave_off(f"the model fails on the first batch: {cause(error)}")
                    del forms[choice]
                    failed = cause(error)
            if len(forms) == 1:
                return self.leave_off(f"it cannot do this model: {failed}")
            steps = 1
            if with_loop:
                steps = int(min(max(CALL_SECONDS * BLOCK / max(seconds(False, BLOCK), 1e-6), 1), LONGEST_CALL))
            times: dict[Choice, list[float]] = {choice: [] for choice in forms}
            end = self._clock() + BUDGET
            for _ in range(ROUNDS):  # in turns, so that what slows the machine meets all of them
                for choice, taken in times.items():
                    taken.append(seconds(choice, steps) / steps)
                if self._clock() > end:
                    break
        found = {choice: statistics.median(taken) for choice, taken in times.items()}
        best = min(found, key=lambda choice: found[choice])
        self._chosen = best if found[best] < found[False] * (1 - MARGIN) else False
        listed = ", ".join(f"{_IN_WORDS[choice]} {one * 1e3:.3g} ms" for choice, one in found.items())
        self._log(f"model.jit_compile: auto takes {_IN_WORDS[self._chosen]} (a step takes: {listed})")


def _form(step: Step, *, is_loop: bool, with_xla: bool) -> Any:
    """A function that needs all results of a step on one batch, or of some steps on the batches of a block."""

    def sum_of(batch: Any) -> tf.Tensor:
        found = [one.values if isinstance(one, tf.IndexedSlices) else one for one in step(batch)]
        return tf.add_n([tf.reduce_sum(tf.cast(tensor, tf.float32)) for tensor in found])

    def run(block: Any, steps: tf.Tensor) -> tf.Tensor:
        if not is_loop:
            return sum_of(block)

        def body(number: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            batch = tf.nest.map_structure(lambda stacked: tf.gather(stacked, number % BLOCK), block)
            return number + 1, total + sum_of(batch)

        begin = (tf.constant(0), tf.zeros([]))
        return tf.while_loop(lambda number, _: number < steps, body, begin, parallel_iterations=1)[1]

    return tf.function(run, autograph=False, jit_compile=True if with_xla else None)
