"""Chooses how XLA is used: not at all, for the forward pass and the gradients, or for whole calls.

Whether XLA is faster depends on the model and the machine, so ``model.jit_compile = "auto"`` times all forms on the
first batch. Checkpoints and run.json record the choice: random layers may draw other numbers with XLA, and a resumed
run must draw the same ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import tensorflow as tf

from prototrain.checkpoint.state import preserve_values
from prototrain.checkpoint.values import preserve_random_state
from prototrain.step.trace import detect_summaries
from prototrain.system.terminal import announcing
from prototrain.system.tracebacks import cause

Choice = bool | Literal["loop"]
"""False: no XLA. True: the forward pass and the gradients. "loop": whole calls, see `XlaLoop`."""

RECORDED_AS = "jit_compile"  # among the facts of a checkpoint
MARGIN = 0.05  # a smaller gain is not worth XLA's compile time
TIMED_CALL_SECONDS = 0.05  # target duration of a timed call
LONGEST_CALL = 64  # steps
ROUNDS = 15  # timed calls of each form
BUDGET = 4.0  # seconds after which no further round is timed
_IN_WORDS = {False: "no XLA", True: "XLA for each step", "loop": "XLA for whole calls"}
Step = Callable[[Any], list[Any]]


class XlaChoice:
    """The choice of how XLA is used, by the setting ``model.jit_compile``.

    Attributes:
        is_measured: whether the setting is "auto".
        chosen: the choice; None until it is measured.
    """

    def __init__(
        self,
        setting: Choice | Literal["auto"],
        log: Callable[[str], None] = print,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.is_measured = setting == "auto"
        self.chosen: Choice | None = None if setting == "auto" else setting
        self._log, self._clock = log, clock

    def recorded(self) -> dict[str, Choice]:
        """Return the fact that checkpoints record; empty if the choice was not measured."""
        return {RECORDED_AS: self.chosen} if self.is_measured and self.chosen is not None else {}

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Restore the choice that an earlier part of the run measured, if any."""
        then = facts.get(RECORDED_AS)
        if self.is_measured and then in (False, True, "loop"):
            self.chosen = then

    def turn_off(self, reason: str) -> None:
        """Turn XLA off without measuring, unless a choice was made already."""
        if self.chosen is None:
            self.chosen = False
            self._log(f"model.jit_compile: auto leaves XLA off, because {reason}")

    def measure(
        self, step: Callable[[bool], Step], batch: Any, *, with_loop: bool, variables: Iterable[Any] = ()
    ) -> None:
        """Time all forms and choose the fastest one, unless a choice was made already. Log the result.

        `step` returns the step to time, with XLA if its argument is true: a traced function from a batch to tensors.
        The `variables` that a step changes are restored afterwards.
        """
        if self.chosen is not None:
            return
        choices: tuple[Choice, ...] = (False, True, "loop") if with_loop else (False, True)
        forms = {choice: _loop(step(choice is True), with_xla=choice == "loop") for choice in choices}

        def seconds(choice: Choice, steps: int) -> float:
            begin = self._clock()
            forms[choice](batch, tf.constant(steps)).numpy()  # waits for the device
            return self._clock() - begin

        with (
            preserve_random_state(),
            announcing("timing the step with and without XLA", self._log),
            preserve_values(variables),
            detect_summaries() as has_summaries,
        ):
            for choice in choices:
                try:
                    seconds(choice, 1)  # compiles
                except tf.errors.OpError as error:
                    if not choice:
                        return self.turn_off(f"the model fails on the first batch: {cause(error)}")
                    del forms[choice]
                    failed = cause(error)
            if has_summaries():  # which cannot be recorded within a call
                forms.pop("loop", None)
            if len(forms) == 1:
                return self.turn_off(f"XLA cannot compile this model: {failed}")
            steps = int(min(max(TIMED_CALL_SECONDS / max(seconds(False, 1), 1e-6), 1), LONGEST_CALL))
            times: dict[Choice, list[float]] = {choice: [] for choice in forms}
            end = self._clock() + BUDGET
            for _ in range(ROUNDS):  # alternate between the forms, so that other load affects all of them
                for choice, taken in times.items():
                    taken.append(seconds(choice, steps) / steps)
                if self._clock() > end:
                    break
        found = {choice: statistics.median(taken) for choice, taken in times.items()}
        best = min(found, key=lambda choice: found[choice])
        self.chosen = best if found[best] < found[False] * (1 - MARGIN) else False
        listed = ", ".join(f"{_IN_WORDS[choice]} {one * 1e3:.3g} ms" for choice, one in found.items())
        self._log(f"model.jit_compile: auto takes {_IN_WORDS[self.chosen]} (a step takes: {listed})")


def _loop(step: Step, *, with_xla: bool) -> Any:
    """Return a `tf.function` that runs several steps on one batch, as one XLA program or not, and sums all results."""

    def run(batch: Any, steps: tf.Tensor) -> tf.Tensor:
        def body(number: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            found = [one.values if isinstance(one, tf.IndexedSlices) else one for one in step(batch)]
            return number + 1, total + tf.add_n([tf.reduce_sum(tf.cast(tensor, tf.float32)) for tensor in found])

        begin = (tf.constant(0), tf.zeros([]))
        return tf.while_loop(lambda number, _: number < steps, body, begin, parallel_iterations=1)[1]

    return tf.function(run, autograph=False, jit_compile=True if with_xla else None)
