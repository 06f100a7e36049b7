"""Compiled steps of a tower trainer: the plan of a call, and what the trainer records of its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.checkpoint.state import variables_in
from prototrain.step.calls import StepCalls, StepResult
from prototrain.step.loop import StepPlan
from prototrain.step.nonfinite import AssertFinite, NoCheck, SkipNonFinite
from prototrain.trainers.base import NOT_RECORDED

if TYPE_CHECKING:
    from prototrain.trainers.tower import TowerTrainer


class CompiledSteps:
    """Runs the compiled steps of a trainer and records their results in it.

    Args:
        trainer: makes the calls, see `TowerTrainer.make_calls`.
        look: called once the step of a run is traced.

    Attributes:
        made: the calls of the present run, if they have been made.
    """

    def __init__(self, trainer: TowerTrainer, look: Callable[[], None]) -> None:
        self._trainer = trainer
        self._look = look
        self.forget()

    def forget(self) -> None:
        """Make new calls for the callbacks of the next run."""
        self.made: StepCalls | None = None
        self._has_looked = False

    @property
    def calls(self) -> StepCalls:
        """The compiled calls of the present run."""
        if self.made is None:
            self.made = self._trainer.make_calls()
        return self.made

    def run(self, n: int) -> int:
        """Do up to `n` steps in one compiled call; returns 0 at the end of a pass over the data, or at a stop."""
        trainer, start = self._trainer, self._trainer.counter.step
        if not trainer.data.catch_up(trainer.should_stop):
            return 0
        if trainer.is_compiled and trainer.callbacks.watching and self.calls.may_be_watched:
            result = self.calls.run(start, n - 1) if n > 1 else self.calls.run_watched(start)
        else:
            result = self.calls.run(start, n)
        self._record(result)
        if result.error is not None:
            raise result.error from result.error.__cause__
        if not self._has_looked and result.steps:  # else nothing is traced yet
            self._has_looked = True
            self._look()
            if self.calls.has_summaries and not trainer.callbacks.has_watchers:
                trainer.run.say_once(NOT_RECORDED)
        if result.data_ended and not result.steps:
            trainer.data.start_next_pass()
        return result.steps

    def _record(self, result: StepResult) -> None:
        trainer, failed = self._trainer, result.error is not None
        # A call that failed has read at least one batch more than it trained on.
        trainer.data.count(result.steps, reads_ahead=failed)
        # Within a user's `run_step` the step may not be complete yet.
        is_whole = result.is_whole if failed else trainer.is_compiled
        outputs = None if failed else result.outputs or None
        trainer._go_to(trainer.counter.step + result.steps, outputs=outputs, is_whole=is_whole)
        trainer.watched, trainer.summary_events = result.watched, result.summary_events
        trainer.times.add_call(tracing=result.tracing, waiting=result.waiting)


def step_plan(trainer: TowerTrainer, *, may_fail: bool = True, may_be_watched: bool = True) -> StepPlan:
    """The plan of a trainer's present run.

    Args:
        trainer: its callbacks are set up.
        may_fail: whether a call can end with an error where a step is not finite; not if other towers continue.
        may_be_watched: whether there is one last step of a call, to be seen.
    """
    callbacks = trainer.callbacks
    follows = trainer.is_compiled and any(callback.overrides("after_run") for callback in callbacks)
    each_step = callbacks.each_step or not trainer.is_compiled

    def before_run(step: tf.Tensor) -> None:
        trainer.counter.trace_iteration(step)
        if trainer.is_compiled:
            callbacks.before_run()

    return StepPlan(
        train_step=trainer.train_step,
        placement=trainer.placement,
        data=trainer.data,
        guard=_guard(trainer, may_fail),
        changed_early=lambda: _changed_early(trainer) if trainer.check_finite else [],
        must_be_finite=trainer.check_finite and trainer.has_own_train_step,
        before_run=before_run,
        after_run=callbacks.after_run if follows else None,
        watched_names=frozenset(callbacks.watched_names),
        may_be_watched=may_be_watched,
        # With several towers a loop's convolutions may differ in the last bits from those of a step outside of one.
        alone=trainer.towers == 1 and each_step,
        stop_requested=trainer.should_stop,
        log=trainer.log,
    )


def _guard(trainer: TowerTrainer, may_fail: bool) -> NoCheck:
    if trainer.loss_scale is not None:
        return SkipNonFinite(trainer.loss_scale, ends=trainer.check_finite)
    if not trainer.check_finite:
        return NoCheck()
    return AssertFinite() if may_fail and trainer.placement.may_fail else SkipNonFinite()


def _changed_early(trainer: TowerTrainer) -> list[Any]:
    """The variables that a step may have changed by the time it proves not to be finite.

    A single guarded update leaves those that the forward pass itself assigns: batch statistics and seeds. A
    `train_step` of the user's own may update anything before it fails.
    """
    if trainer.has_own_train_step:
        return variables_in(trainer.state)
    changed: list[Any] = [variable for variable in trainer.variables.values() if not variable.trainable]
    changed += trainer.placement.own_variables()
    if any(callback.overrides("before_run") for callback in trainer.callbacks):
        changed += [v for v in trainer.optimizer.variables if v is trainer.optimizer.learning_rate]
    return changed
