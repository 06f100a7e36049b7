"""Iterations done in Python, one after the other: what `Trainer.run_steps` does unless a trainer compiles its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from prototrain.errors import NonFiniteError, StopTraining
from prototrain.step.calls import CALL_SECONDS

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

NOT_RECORDED = "WARNING: the step calls tf.summary, and nobody records that; add Summaries() to the callbacks"


def python_steps(trainer: Trainer, n: int) -> int:
    """Call `run_step` up to `n` times, with the hooks of the callbacks around it; for about 0.2 s at most.

    Returns:
        how many iterations were done, at least one.
    """
    until = time.perf_counter() + CALL_SECONDS
    start = trainer.global_step
    for done in range(1, n + 1):
        trainer.begin_step()
        try:
            with trainer.summaries.recording(start + done):
                trainer.callbacks.before_run()
                outputs = _checked(trainer.run_step())
        except StopTraining:
            trainer.go_to(trainer.global_step)  # raised in place of a step, such as at the end of the data
            raise
        trainer.outputs = outputs
        _take_summaries(trainer, is_watched=done == n and trainer.callbacks.watching)
        if trainer.check_finite:
            _require_finite(outputs, start + done)
        try:
            trainer.callbacks.after_run(dict(outputs))
        except StopTraining:
            trainer.go_to(start + done)
            raise
        trainer.go_to(start + done)
        if trainer.stop.signum is not None or time.perf_counter() > until:
            break
    return trainer.global_step - start


def _take_summaries(trainer: Trainer, *, is_watched: bool) -> None:
    """What the step gave to `tf.summary` is for those who watch it, as in a compiled step."""
    events = trainer.summaries.take()
    trainer.summary_events = events if is_watched else ()
    if events and not trainer.callbacks.has_watchers:
        trainer.session.say_once(NOT_RECORDED)


def _checked(outputs: Mapping[str, Any] | None) -> dict[str, Any]:
    if outputs is None:
        return {}
    if not isinstance(outputs, Mapping) or not all(isinstance(name, str) for name in outputs):
        raise TypeError(f"run_step() must return a dict of scalars by name, or None; it returned {outputs!r}")
    return dict(outputs)


def _require_finite(outputs: Mapping[str, Any], step: int) -> None:
    for name, value in outputs.items():
        if not math.isfinite(float(value)):
            raise NonFiniteError(f"{name} is {float(value)} in step {step}")
