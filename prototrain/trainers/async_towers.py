"""Asynchronous training on several towers in one process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from prototrain.data.batches import Batch
from prototrain.experiment import Experiment
from prototrain.experiment.facts import Facts
from prototrain.gradient_processors import MapGradient, divide
from prototrain.model.placement import AsyncPlacement
from prototrain.step.calls import StepCalls, StepResult
from prototrain.step.loop import CompiledCalls, Iteration
from prototrain.step.variables import StopVariable
from prototrain.towers import choose_devices
from prototrain.trainers.tower import TowerTrainer

if TYPE_CHECKING:
    from prototrain.model import ModelProtocol


class ThreadedLoops(StepCalls):
    """One compiled loop per tower; the loops run at the same time, each in its own thread."""

    def __init__(self, iteration: Iteration, placement: AsyncPlacement, stop: StopVariable) -> None:
        super().__init__(iteration)
        self._stop = stop
        self._completed = 0
        self._made: list[int] = []  # steps of each loop in the last call
        towers = len(placement.devices)
        self._pool = ThreadPoolExecutor(towers, thread_name_prefix="tower")

        def on_tower(index: int) -> CompiledCalls:
            def train_step(inputs: Batch) -> Any:
                with placement.on_tower(index):
                    return iteration.train_step(inputs)

            of_tower = copy(iteration)
            of_tower.train_step = train_step
            # The loops use variables and ops on several devices, which only `tf.function` supports.
            return CompiledCalls(of_tower, stop, stride=towers, towers=towers)

        self._loops = [on_tower(index) for index in range(towers)]

    def _run(self, iterator: Any, n: int, start: int) -> StepResult:
        self._completed = start
        share, rest = divmod(n, len(self._loops))
        quotas = [share + (index < rest) for index in range(len(self._loops))]
        # Trace one loop after the other: names and seeds must not depend on the timing of threads.
        for loop in self._loops:
            loop.trace(iterator)
        futures = []
        for index, (loop, quota) in enumerate(zip(self._loops, quotas, strict=True)):
            loop.count_from(start + index)
            futures.append(self._pool.submit(self._run_one, loop, iterator, quota))
        errors = [error for future in futures if (error := future.exception())]
        # Clear a stop that one tower set for the others, unless a signal has asked for a stop.
        self._stop.set(self._iteration.trainer.should_stop())
        self._made = [loop.completed() - start - index for index, loop in enumerate(self._loops)]
        self._completed = start + sum(self._made)
        results = [future.result() for future in futures if not future.exception()]
        bad = [result for result in results if not result.is_finite]
        if errors:
            raise errors[0]
        shown = bad or [result for result in results if result.steps]
        names = shown[0].outputs if shown else {}
        return StepResult(
            steps=sum(self._made),
            scalars=self.scalars_so_far(sum(self._made)),
            outputs={name: fmean(result.outputs[name] for result in shown) for name in names},
            is_finite=not bad,
            data_ended=any(result.data_ended for result in results),
            waiting=max(result.waiting for result in results),
        )

    def _run_one(self, loop: CompiledCalls, iterator: Any, n: int) -> StepResult:
        try:
            result = loop.run_loop(iterator, n)
        except BaseException:
            self._stop.set(True)
            raise
        if not result.is_finite:
            self._stop.set(True)
        return result

    def completed(self) -> int:
        return self._completed

    def scalars_so_far(self, steps: int) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for loop, made in zip(self._loops, self._made, strict=True):
            for name, values in loop.scalars_so_far(made).items():
                found.setdefault(name, []).extend(values)
        return found

    @property
    def graph(self) -> Any:
        return self._loops[0].graph


class AsyncTrainer(TowerTrainer):
    """Trains on several devices asynchronously: each tower applies the gradients of its batches without waiting.

    A step is one update by one tower, with a whole batch of ``model.batch_size`` examples. The towers read and write
    one copy of the variables, so gradients may be computed from weights that are a few steps old, and runs are not
    reproducible bit for bit. If callbacks run in every step, only the first tower works. When `StopOnNaN` ends a run,
    another tower may have read statistics that were not finite; such a state is not saved for a resume.

    Args:
        model, towers, experiment: see `SyncReplicatedTrainer`.
        scale_gradient: divide each gradient by the number of towers, so that learning rates are comparable with
            synchronous training.

    Raises:
        ConfigError: a device does not exist.
    """

    devices: list[str]
    takes_towers = True
    measures_xla = False
    placement: AsyncPlacement

    def __init__(
        self,
        model: ModelProtocol,
        towers: int | str | Sequence[str] | None = None,
        *,
        scale_gradient: bool = True,
        experiment: Experiment | str | Path | None = None,
    ) -> None:
        self.devices = choose_devices(towers)
        super().__init__(model, experiment=experiment, placement=AsyncPlacement(self.devices))
        towers = len(self.devices)
        if scale_gradient and towers > 1:
            self._scaling = MapGradient(lambda one: divide(one, tf.constant(np.float32(towers))))
            self.gradient_processors.insert(0, self._scaling)

    def make_calls(self) -> StepCalls:
        # A loop must not fail, since the other loops would continue, and it always runs several steps.
        iteration = Iteration(self, may_fail=False, may_be_watched=False)
        iteration.is_single_step = False
        return ThreadedLoops(iteration, self.placement, self._stop_variable)

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "towers": f"{len(self.devices)}, each with its own batches",
            "global batch": None,
            "batch": self.global_batch,
        }

    def _facts(self) -> Facts:
        return {**super()._facts(), "towers": len(self.devices)}
