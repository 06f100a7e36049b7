"""Whether the forward pass and the gradients go through XLA: as the config says, or whichever is measured to be faster.

XLA pays on some models and costs on others, and on one machine other than on the next, so ``model.jit_compile =
"auto"`` tries both forms on the first batch. The choice belongs to the run: its checkpoints and run.json have it, since
random layers may draw other numbers in XLA and a resumed run must go on with the same ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import tensorflow as tf

from prototrain.checkpoint.random import random_state_kept
from prototrain.model.evaluation import values_kept
from prototrain.system.tracebacks import cause
from prototrain.system.waiting import announcing

RECORDED_AS = "jit_compile"  # among the facts of a checkpoint
MARGIN = 0.05  # a form that is faster by less is not worth the seconds that XLA compiles
ROUNDS = 15  # calls of each form that are timed, in turns
BUDGET = 4.0  # seconds after which slow models are not timed any longer
Form = Callable[[Any], Any]


class XlaChoice:
    """Says whether XLA is on.

    Args:
        setting: ``model.jit_compile``.
        log: prints a line for the user.
        clock: seconds, for measuring.
    """

    def __init__(
        self,
        setting: bool | Literal["auto"],
        log: Callable[[str], None] = print,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.is_measured = setting == "auto"
        self._chosen: bool | None = None if setting == "auto" else setting
        self._log, self._clock = log, clock

    @property
    def is_on(self) -> bool:
        """The choice; off before there is one."""
        return bool(self._chosen)

    def recorded(self) -> dict[str, bool]:
        """What a checkpoint records of a choice that was measured."""
        return {RECORDED_AS: self.is_on} if self.is_measured and self._chosen is not None else {}

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Go on with what an earlier part of the run has measured, if it has."""
        then = facts.get(RECORDED_AS)
        if self.is_measured and isinstance(then, bool):
            self._chosen = then

    def leave_off(self, reason: str) -> None:
        """Choose without having measured."""
        if self._chosen is None:
            self._chosen = False
            self._log(f"model.jit_compile: auto leaves XLA off, because {reason}")

    def measure(self, form: Callable[[bool], Form], batch: Any) -> None:
        """Choose by what takes less time, if nothing is chosen yet, and say so. No variable is changed by it.

        Args:
            form: makes the function to be timed, with XLA or without; traced.
            batch: what it is called with.
        """
        if self._chosen is not None:
            return
        plain, compiled = forms = [tf.function(form(with_xla), autograph=False) for with_xla in (False, True)]
        with random_state_kept(), announcing("trying the step with XLA and without", self._log):
            graphs = [one.get_concrete_function(batch).graph for one in forms]
            used = {id(variable): variable for graph in graphs for variable in graph.variables}
            with values_kept(used.values()):
                for one, why in ((plain, "the model fails on the first batch"), (compiled, "it cannot do this model")):
                    try:
                        _wait_for(one(batch))  # compiles
                    except tf.errors.OpError as error:
                        self.leave_off(f"{why}: {cause(error)}")
                        return
                without, with_xla = self._seconds(forms, batch)
        self._chosen = with_xla < without * (1 - MARGIN)
        self._log(
            f"model.jit_compile: auto turns XLA {'on' if self._chosen else 'off'}: the forward pass and the gradients "
            f"take {with_xla * 1e3:.3g} ms with it and {without * 1e3:.3g} ms without"
        )

    def _seconds(self, forms: list[Form], batch: Any) -> tuple[float, float]:
        """The median of each form's times; of calls in turns, so that what slows the machine meets both."""
        times: list[list[float]] = [[] for _ in forms]
        end = self._clock() + BUDGET
        for _ in range(ROUNDS):
            for form, taken in zip(forms, times, strict=True):
                begin = self._clock()
                _wait_for(form(batch))
                taken.append(self._clock() - begin)
            if self._clock() > end:
                break
        without, with_xla = map(statistics.median, times)
        return without, with_xla


def _wait_for(results: Any) -> None:
    """Have what was computed, on whatever device, before the clock is read."""
    for result in tf.nest.flatten(results)[-1:]:
        result.numpy()
