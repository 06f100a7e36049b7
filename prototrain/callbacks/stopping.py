"""Callbacks that end a run: after a time limit, without improvement, or at non-finite values."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from prototrain.callbacks.base import Callback, Priority, require_same_steps
from prototrain.callbacks.monitor import Best, Mode
from prototrain.checkpoint.state import CALLBACK_PREFIX
from prototrain.checkpoint.weights import AVERAGES
from prototrain.errors import CallbackError, NonFiniteError, StopTraining
from prototrain.system.terminal import format_number


class EarlyStopping(Callback):
    """Ends the run when a scalar has stopped improving.

        EarlyStopping("vld/loss", mode="min", patience=3).every(steps=100)  # with Validation().every(steps=100)

    A stopped run that is started again ends at once, unless `patience` is increased.

    With `restore_best`, the best values of the model's variables and their moving averages, but not of NumPy arrays in
    `trainer.state`, are restored when the callback ends the run. Every checkpoint grows by the size of the model.

    Args:
        stat: the scalar's name, such as "vld/loss".
        mode: "min" if smaller is better, "max" if larger is better.
        patience: the number of consecutive measurements without improvement after which the run ends.
        min_delta: the minimum change that counts as an improvement.
        restore_best: whether to restore the best weights, unless the best step was before this option was set.

    Attributes:
        has_restored: whether the best weights have been restored in this run.

    Raises:
        CallbackError: an argument is out of range; while training, if the scalar was not measured at the current step.
    """

    chief_only = False
    priority = Priority.DECIDE
    at_end = False

    def __init__(
        self, stat: str, *, mode: Mode, patience: int, min_delta: float = 0.0, restore_best: bool = False
    ) -> None:
        if patience < 1:
            raise CallbackError(f"EarlyStopping: patience must be at least 1, got {patience!r}")
        self.stat = stat
        self.patience = patience
        self.state_key = f"EarlyStopping/{stat}"
        self.best = Best(mode, min_delta=min_delta)
        self._restore_best = restore_best
        if restore_best:
            self.priority = Priority.RESTORE_BEST
        self._waited = 0
        self._copies: list[tuple[Any, tf.Variable]] = []
        self._copied_at: int | None = None  # the step of the copies

    def setup(self) -> None:
        require_same_steps(self)
        self._copied_at, self.has_restored = None, False
        if not self._restore_best:
            return
        state, prefix = self.trainer.state, f"{CALLBACK_PREFIX}{self.state_key}/"
        if not self.trainer.model_variables:
            kind = type(self.trainer).__name__
            raise CallbackError(f"EarlyStopping(restore_best=True): {kind} has no variables in its state")
        # If there are moving averages, the evaluation used them.
        averages = {name: entry for name, entry in state.items() if name.startswith(AVERAGES)}
        self._copies = []
        for name, variable in {**self.trainer.model_variables, **averages}.items():
            if prefix + name not in state:
                state[prefix + name] = tf.Variable(variable, trainable=False, dtype=variable.dtype)
            self._copies.append((variable, state[prefix + name]))

    def before_train(self) -> None:
        is_done = self._waited >= self.patience
        self.has_restored = is_done and bool(self._copies) and self._copied_at == self.best.step
        self._stop_if_done()

    def trigger(self) -> None:
        step = self.trainer.global_step
        value = self.trainer._of_chief(lambda: self.trainer.monitors.latest(self.stat, at_step=step))
        if self.best.update(value, step):
            self._waited = 0
            self._copied_at = step
            for variable, copy in self._copies:
                copy.assign(variable)
            return
        self._waited += 1
        self._stop_if_done(self._put_back() if self._waited >= self.patience and self._copies else "")

    def _put_back(self) -> str:
        """Restore the best weights; returns a phrase that says whether they were."""
        if self.best.step is None:
            return ""
        if self._copied_at != self.best.step:  # an earlier part of the run had no `restore_best`
            return ", whose weights were not kept"
        for variable, copy in self._copies:
            variable.assign(copy)
        self.has_restored = True
        is_kept = self.trainer.global_step in self.trainer.run.protected_steps
        return ", restored" + "; the checkpoint of this step was written before" * is_kept

    def _stop_if_done(self, what: str = "") -> None:
        if self._waited >= self.patience:
            found = self.best.step is not None
            value = "" if self.best.value is None else format_number(self.best.value)
            best = f"best {value} at step {self.best.step}" if found else "all of them were NaN"
            raise StopTraining(f"{self.stat} has not improved in {self._waited} measurements; {best}{what}")

    def state_dict(self) -> dict[str, Any]:
        copied_at = self._copied_at if self._copies else None
        return {"best": self.best.state_dict(), "waited": self._waited, "copied_at": copied_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best.load_state_dict(state["best"])
        self._waited, self._copied_at = int(state["waited"]), state["copied_at"]


class StopAfter(Callback):
    """Ends the run after a training time limit. Time before a resume counts.

        StopAfter(hours=8)

    Args:
        hours, minutes, seconds: the time limit; the values are added.

    Raises:
        CallbackError: the time limit is not positive.
    """

    chief_only = False
    clock = staticmethod(time.monotonic)

    def __init__(self, *, hours: float = 0.0, minutes: float = 0.0, seconds: float = 0.0) -> None:
        self._limit = hours * 3600 + minutes * 60 + seconds
        if not self._limit > 0:
            raise CallbackError("StopAfter: give a time, such as StopAfter(hours=8)")
        self._earlier = 0.0
        self._started_at: float | None = None

    def _elapsed(self) -> float:
        return self._earlier + (0.0 if self._started_at is None else self.clock() - self._started_at)

    def before_train(self) -> None:
        self._started_at = self.clock()
        self.trigger_step()

    def next_step(self, step: int) -> int | None:
        return step + 1 if self._elapsed() >= self._limit else None

    def trigger_step(self) -> None:
        elapsed = self._elapsed()
        if elapsed >= self._limit:
            raise StopTraining(f"time limit reached: {elapsed:.1f} s of {self._limit:g} s")

    def after_train(self) -> None:
        self._earlier, self._started_at = self._elapsed(), None

    def state_dict(self) -> dict[str, Any]:
        return {"elapsed": self._elapsed()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._earlier = float(state["elapsed"])


class StopOnNaN(Callback):
    """Ends the run with an error at the first step with a NaN or infinite loss, gradient or learning rate.

    In a tower trainer, the check is part of the compiled step, and the bad update is not applied. In a small model, a
    call of several steps may be undone and repeated up to the bad step, so that a `tf.py_function` or `tf.print` runs
    twice. In a plain-Python trainer, every scalar that `run_step` returns is checked.

    All variables are checked before each checkpoint and at the end of the run, so a non-finite checkpoint is never
    written. A variable that is not finite before the first step, such as a mask of -inf, is reported once and not
    checked.
    """

    chief_only = False  # all workers must apply the same updates

    def setup(self) -> None:
        self.trainer.check_finite = True

    def after_train(self) -> None:
        """Check the final state before it is saved."""
        trainer, run = self.trainer, self.trainer.run
        if trainer.global_step == run.began_at or not run.state_is_sound or not (found := run.find_not_finite()):
            return
        run.mark_failed()
        text = f"after step {trainer.global_step}, {found}; {run.resume_point()}"
        if trainer.callbacks.failure is None:
            raise NonFiniteError(text)
        trainer.log(f"WARNING: {text}")


class CheckNumerics(Callback):
    """Ends the run with an error if a variable or array of `trainer.state` contains NaN or infinity.

    The check runs before the savers of the step, so the newest checkpoint keeps finite weights. With `StopOnNaN` in the
    list, it leaves the same variables unchecked.
    """

    def trigger(self) -> None:
        run = self.trainer.run
        if found := run.find_not_finite():
            run.mark_failed()
            raise NonFiniteError(f"after step {self.trainer.global_step}, {found}")
