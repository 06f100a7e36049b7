"""Keeping the checkpoint at which a scalar was best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prototrain.callbacks.base import Callback, Priority, innermost
from prototrain.callbacks.monitor import Best, Mode
from prototrain.callbacks.saving.model_saver import ModelSaver
from prototrain.errors import CheckpointError, NonFiniteError
from prototrain.system.files import write_atomic


class BestSaver(Callback):
    """Writes a checkpoint whenever a scalar is better than ever before; base of `MinSaver` and `MaxSaver`.

    The checkpoint has the weights that were measured: it is written before `EarlyStopping` puts back others, and a
    later save of the same step leaves it as it is. Only the best one is kept, and `ModelSaver(max_to_keep=...)` does
    not delete it. The best value and its step are part of every checkpoint, and stand in
    ``checkpoints/<mode>-<stat>.json`` for tools that look for the best model.

    Trigger it where the scalar is measured: ``MinSaver("vld/loss").every(steps=100)`` with
    ``Validation().every(steps=100)``.

    Args:
        stat: the scalar's name, such as "vld/loss".

    Raises:
        CallbackError: while training, if the scalar was not measured at the present step.
    """

    priority = Priority.KEEP
    mode: Mode

    def __init__(self, stat: str) -> None:
        self.stat = stat
        self.state_key = f"{type(self).__name__}/{stat}"
        self.best = Best(self.mode)
        self._own: int | None = None  # the best step, if its checkpoint was written here

    def setup(self) -> None:
        self._checkpoints = self.trainer.require_experiment(self.name).checkpoints
        self._protect()
        # With a ModelSaver in the list, what is no longer the best is one of its checkpoints, to be kept or deleted
        # by it.
        self._has_saver = any(isinstance(innermost(callback), ModelSaver) for callback in self.trainer.callbacks)

    def check_run(self) -> None:
        self.trainer.monitors.require(self, self.stat)

    def before_train(self) -> None:
        # A run may resume from before the step that an earlier note names, and reach that step again.
        step = self.best.step
        if step is not None and self.trainer.run.checkpoints.path(step).exists():
            self._write_note()
        else:
            self._note.unlink(missing_ok=True)

    def trigger(self) -> None:
        if not self.trainer.run.state_is_sound:
            return  # it would be saved aside
        step = self.trainer.global_step
        before, superseded = self.state_dict(), self._own
        if not self.best.update(self.trainer.monitors.latest(self.stat, at_step=step), step):
            return
        # The checkpoint holds the state that this callback has after it.
        checkpoints = self.trainer.run.checkpoints
        self._own = None if checkpoints.path(step).exists() else step
        try:
            self.trainer.save()
        except (CheckpointError, NonFiniteError) as error:
            self.load_state_dict(before)
            if isinstance(error, NonFiniteError):
                raise
            self.trainer.log(f"WARNING: {error}; training continues")
            return
        self._protect()
        self._write_note()
        if superseded is not None and superseded != step and not self._has_saver:
            checkpoints.remove(superseded, protected=self.trainer.run.protected_steps)

    def _protect(self) -> None:
        self.trainer.run.protect(str(self.state_key), self.best.step)

    @property
    def _note(self) -> Path:
        return self._checkpoints / f"{self.mode}-{self.stat.replace('/', '-')}.json"

    def _write_note(self) -> None:
        step = self.best.step
        assert step is not None
        name = self.trainer.run.checkpoints.path(step).name
        note = {"stat": self.stat, "value": self.best.value, "step": step, "checkpoint": name}
        try:
            write_atomic(self._note, json.dumps(note) + "\n")
        except OSError as error:  # of a full disk: the checkpoint is there, and a resume writes the note again
            self.trainer.log(f"WARNING: cannot write {self._note}: {error.strerror}")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best.state_dict(), "own": self._own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best.load_state_dict(state["best"])
        self._own = None if state["own"] is None else int(state["own"])
        self._protect()


class MinSaver(BestSaver):
    """Keeps the checkpoint at which a scalar was smallest; see `BestSaver`.

    Args:
        stat: the scalar's name, such as "vld/loss".
    """

    mode = "min"


class MaxSaver(BestSaver):
    """Keeps the checkpoint at which a scalar was largest; see `BestSaver`.

    Args:
        stat: the scalar's name, such as "vld/accuracy".
    """

    mode = "max"
