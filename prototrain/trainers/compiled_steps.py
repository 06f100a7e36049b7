"""Creates the `StepPlan` of a tower trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.checkpoint.state import variables_in
from prototrain.step.loop import StepPlan
from prototrain.step.nonfinite import AssertFinite, NoCheck, SkipNonFinite

if TYPE_CHECKING:
    from prototrain.trainers.tower import TowerTrainer


def step_plan(trainer: TowerTrainer, *, may_fail: bool = True, may_be_watched: bool = True) -> StepPlan:
    """Return the plan of a trainer's current run.

    Args:
        trainer: a trainer whose callbacks are set up.
        may_fail: whether a call may raise an error at a step that is not finite; False if other towers continue.
        may_be_watched: whether the last step of a call can run separately, so that callbacks can watch its tensors.
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
        # With several towers, convolutions inside a loop may differ in the last bits from those outside a loop.
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
    """Return the variables that a step may change before it is found not to be finite.

    With the default `train_step` these are the variables that the forward pass assigns, such as batch statistics and
    seeds. A custom `train_step` may change any variable.
    """
    if trainer.has_own_train_step:
        return list(variables_in(trainer.state).values())
    changed: list[Any] = [variable for variable in trainer.variables.values() if not variable.trainable]
    changed += trainer.placement.own_variables()
    if any(callback.overrides("before_run") for callback in trainer.callbacks):
        changed += [v for v in trainer.optimizer.variables if v is trainer.optimizer.learning_rate]
    return changed
