"""Ending a run that no longer gets better."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.callbacks.best import Best, Mode
from prototrain.checkpoint.state import OF_CALLBACKS
from prototrain.errors import CallbackError, StopTraining


class EarlyStopping(Callback):
    """Ends the run when a scalar has not improved in so many measurements.

    Trigger it where the scalar is measured: ``.every(steps=100)`` beside ``Validation().every(steps=100)``. A run that
    was stopped stays stopped: started again it ends at once, unless it is given more patience.

    With `restore_best`, the model's variables go back to their best values at the moment of the stop, so the last
    checkpoint holds them; a run that ends by itself keeps its last values, to be exactly continued. The best values are
    part of every checkpoint, which grows by the size of the model.

    Args:
        stat: the scalar's name, such as "vld/loss".
        mode: "min" if the scalar should become smaller, "max" if larger.
        patience: how many measurements in a row may bring no improvement.
        min_delta: by how much, at least, a value must be better to count.
        restore_best: whether the model gets its best weights back when the run is stopped.

    Raises:
        CallbackError: an argument is out of its range; while training, if the scalar was not measured at the present
            step.
    """

    chief_only = False
    at_end = False

    def __init__(
        self, stat: str, *, mode: Mode, patience: int, min_delta: float = 0.0, restore_best: bool = False
    ) -> None:
        if not isinstance(patience, int) or isinstance(patience, bool) or patience < 1:
            raise CallbackError(f"EarlyStopping: patience must be a whole number of at least 1, got {patience!r}")
        self.stat = stat
        self.patience = patience
        self.state_key = f"EarlyStopping/{stat}"
        self._mode: Mode = mode
        self._min_delta = min_delta
        self._restore_best = restore_best
        self._copies: list[tuple[Any, tf.Variable]] = []
        self._reset()

    def _reset(self) -> None:
        self.best = Best(self._mode, min_delta=self._min_delta)
        self._waited = 0

    def setup(self) -> None:
        if self.trainer.global_step == 0:
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
        for name, variable in model.items():
            if mine + name not in state:
                state[mine + name] = tf.Variable(variable, trainable=False, dtype=variable.dtype)
        return [(variable, state[mine + name]) for name, variable in model.items()]

    def before_train(self) -> None:
        self._stop_if_done()

    def trigger(self) -> None:
        step = self.trainer.global_step
        if self.best.update(self.trainer.monitors.latest(self.stat, at_step=step), step):
            self._waited = 0
            for variable, copy in self._copies:
                copy.assign(variable)
            return
        self._waited += 1
        if self._waited >= self.patience:
            for variable, copy in self._copies if self.best.step is not None else ():
                variable.assign(copy)
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if self._waited >= self.patience:
            restored = " and has its weights of then back" if self._copies else ""
            raise StopTraining(
                f"{self.stat} has not improved in {self._waited} measurements; "
                f"it was best at step {self.best.step}, {self.best.value}{restored}"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best.state_dict(), "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best.load_state_dict(state["best"])
        self._waited = int(state["waited"])
