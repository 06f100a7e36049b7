"""Ending a run that no longer gets better."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback, Priority, begins_anew
from prototrain.callbacks.best import Best, Mode
from prototrain.callbacks.saving.save_on_exit import save_ahead
from prototrain.checkpoint.state import OF_CALLBACKS
from prototrain.checkpoint.weights import AVERAGES
from prototrain.errors import CallbackError, StopTraining


class EarlyStopping(Callback):
    """Ends the run when a scalar has not improved in so many measurements.

    Trigger it where the scalar is measured: ``.every(steps=100)`` with ``Validation().every(steps=100)``. A run that
    was stopped stays stopped: started again it ends at once, unless it is given more patience.

    With `restore_best`, the model's variables, and their moving averages if there are any, go back to their best values
    at the moment of the stop, so the last checkpoint holds them; unless `MinSaver` or `MaxSaver` keeps that very step
    for another score. When a run ends before that, they go back, too, but the last checkpoint holds the last values, to
    be exactly continued. The best values are part of every checkpoint, which grows by the size of the model.

    Args:
        stat: the scalar's name, such as "vld/loss".
        mode: "min" if the scalar should become smaller, "max" if larger.
        patience: how many measurements in a row may bring no improvement.
        min_delta: by how much, at least, a value must be better to count.
        restore_best: whether the model gets its best weights back when the run is over.

    Raises:
        CallbackError: an argument is out of its range; while training, if the scalar was not measured at the present
            step.
    """

    chief_only = False
    priority = Priority.DECIDE
    at_end = False

    def __init__(
        self, stat: str, *, mode: Mode, patience: int, min_delta: float = 0.0, restore_best: bool = False
    ) -> None:
        if not isinstance(patience, int | np.integer) or isinstance(patience, bool) or patience < 1:
            raise CallbackError(f"EarlyStopping: patience must be a whole number of at least 1, got {patience!r}")
        self.stat = stat
        self.patience = patience
        self.state_key = f"EarlyStopping/{stat}"
        self._mode: Mode = mode
        self._min_delta = min_delta
        self._restore_best = restore_best
        if restore_best:
            self.priority = Priority.PUT_BACK
        self._copies: list[tuple[Any, tf.Variable]] = []
        self._reset()

    def _reset(self) -> None:
        self._is_back = False
        self.best = Best(self._mode, min_delta=self._min_delta)
        self._waited = 0
        self._counted_at = -1  # the step of the last measurement

    def setup(self) -> None:
        if begins_anew(self):
            self._reset()
        if self._restore_best:
            self._copies = list(self._copy_variables())

    def _copy_variables(self) -> list[tuple[Any, tf.Variable]]:
        state = self.trainer.state
        mine = f"{OF_CALLBACKS}{self.state_key}/"
        model = self.trainer.model_variables
        if not model:
            raise CallbackError(
                f"EarlyStopping(restore_best=True): {type(self.trainer).__name__} has no variables in its state"
            )
        # With averages, it is those that were measured.
        model = {**model, **{name: entry for name, entry in state.items() if name.startswith(AVERAGES)}}
        for name, variable in model.items():
            if mine + name not in state:
                state[mine + name] = tf.Variable(variable, trainable=False, dtype=variable.dtype)
        return [(variable, state[mine + name]) for name, variable in model.items()]

    def check_run(self) -> None:
        self.trainer.monitors.require(self, self.stat)

    def before_train(self) -> None:
        self._is_back = False
        self._stop_if_done()

    def trigger(self) -> None:
        step = self.trainer.global_step
        if step == self._counted_at:
            return  # a resumed run calls the callbacks of its step again if one of them had failed
        value = self.trainer.monitors.latest(self.stat, at_step=step)
        self._counted_at = step
        if self.best.update(value, step):
            self._waited = 0
            for variable, copy in self._copies:
                copy.assign(variable)
            return
        self._waited += 1
        if self._waited >= self.patience:
            self._put_back()
        self._stop_if_done()

    def _put_back(self) -> None:
        if not self._copies or self.best.step is None:
            return
        self._is_back = True
        for variable, copy in self._copies:
            variable.assign(copy)
        step, experiment = self.trainer.global_step, self.trainer.experiment
        if experiment is not None and self.trainer.run.checkpoints.path(step).exists():
            self.trainer.log(
                f"EarlyStopping: the checkpoint of step {step} stays as it was measured; the weights of step "
                f"{self.best.step} are put back in this process, and again by every resume"
            )

    def after_train(self) -> None:
        trainer, best = self.trainer, self.best.step
        over = trainer.callbacks.failure is None and trainer.run.state_is_sound
        if not over or self._is_back or not self._copies or best in (None, trainer.global_step):
            return
        if self._waited >= self.patience:
            return  # it ended at once, with the weights that the earlier stop has put back
        save_ahead(trainer)  # the last values
        for variable, copy in self._copies:
            variable.assign(copy)
        trainer.log(f"EarlyStopping: the run is over; the weights of step {best}, the best, are back in this process")

    def _stop_if_done(self) -> None:
        if self._waited >= self.patience:
            restored = " and has its weights of then back" if self._copies else ""
            raise StopTraining(
                f"{self.stat} has not improved in {self._waited} measurements; "
                f"it was best at step {self.best.step}, {self.best.value}{restored}"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best.state_dict(), "waited": self._waited, "counted_at": self._counted_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best.load_state_dict(state["best"])
        self._waited, self._counted_at = int(state["waited"]), int(state["counted_at"])
