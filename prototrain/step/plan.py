"""What a compiled call has to know of whoever asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from prototrain.step.guard import Guard

Batch = dict[str, Any]


class Stream(Protocol):
    """Where batches come from, such as `prototrain.data.stream.TrainingData`."""

    @property
    def iterator(self) -> Any:
        """Gives them; another object after a restore or a new pass."""

    @property
    def endless(self) -> bool:
        """Whether the iterator itself never ends."""

    @property
    def element_spec(self) -> Mapping[str, Any]:
        """What a batch looks like, by name."""


class Towers(Protocol):
    """Where the work is done, such as `prototrain.model.placement.Placement`."""

    @property
    def towers(self) -> int:
        """How many there are."""

    def run(self, function: Callable[..., Any], inputs: Batch) -> Any:
        """Call a function in every tower with its part of a batch; traced."""

    def local_results(self, value: Any) -> Sequence[Any]:
        """What each tower of this process has returned."""

    def mean(self, values: list[Any]) -> list[Any]:
        """Average tensors over all towers, from inside one; traced."""

    def moving_statistics(self) -> list[tf.Variable]:
        """The variables that are averaged after each step."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """A call of many steps, in the terms of whoever asks for it.

    Attributes:
        train_step: one tower's iteration, from its batch to scalars by name; traced.
        placement: runs it on the towers.
        data: gives the batches.
        guard: what becomes of a step that is not finite.
        changed_early: the variables that a step may have changed by the time it proves not to be finite.
        must_be_finite: whether the guard looks at all scalars, and not only at what goes through an update.
        before_run: called where each iteration is traced, with the number of completed steps.
        after_run: called behind it with the scalars, if anyone wants that.
        watched_names: the tensors that are wanted of a watched step.
        may_be_watched: whether the last step of a call can be seen alone, with more than its scalars.
        alone: whether every call is a single step, which then needs no loop.
        stop_requested: whether the run is to stop.
        log: prints a line for the user.
    """

    train_step: Callable[[Batch], Mapping[str, tf.Tensor]]
    placement: Towers
    data: Stream
    guard: Guard
    changed_early: Callable[[], Sequence[Any]]
    must_be_finite: bool
    before_run: Callable[[tf.Tensor], None]
    after_run: Callable[[dict[str, Any]], None] | None
    watched_names: frozenset[str]
    may_be_watched: bool
    alone: bool
    stop_requested: Callable[[], bool]
    log: Callable[[str], None]
