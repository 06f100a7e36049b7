"""Adapter for Keras callbacks."""

from __future__ import annotations

import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import keras

from prototrain.callbacks.base import Callback, Priority
from prototrain.callbacks.hyperparameters import LearningRate
from prototrain.callbacks.saving import save_ahead
from prototrain.checkpoint.values import decode, encode
from prototrain.errors import CallbackError, CheckpointError, StopTraining
from prototrain.tf_private import CALLBACK_SCRATCH

_SETS_RATE = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


class KerasCallback(Callback):
    """Adapts a Keras callback to the training loop.

    With a `KerasTrainer`, `logs` are the same as in `fit`; with other trainers they are the scalars of the step. At the
    end of an epoch they also have the epoch's validation results as ``val_<name>``. A batch hook reduces each compiled
    call to one step, unless the callback has ``save_freq="epoch"`` or ``update_freq="epoch"``.

    Checkpoints save the attributes that change during training and are plain data: numbers, strings, arrays, and lists,
    tuples and dicts of these. `on_train_end` is called at the planned end of the run, after the last checkpoint is
    written, but not after a signal or an error.

    Args:
        callback: a Keras callback, such as ``keras.callbacks.ReduceLROnPlateau()``.
        state_key: the key of its state in a checkpoint; by default its class name and its monitored value.

    Raises:
        CallbackError: `callback` is not a Keras callback; at the start of a run, if it is a `BackupAndRestore` and the
            run has an experiment, or if `LearningRate` also sets its learning rate.
        AttributeError: during training, if it uses the Keras model of a trainer that has none.
    """

    priority = Priority.DECIDE
    _model: Any = None  # until setup

    def __init__(self, callback: keras.callbacks.Callback, *, state_key: str | None = None) -> None:
        if not isinstance(callback, keras.callbacks.Callback) or isinstance(callback, keras.callbacks.CallbackList):
            raise CallbackError(f"{callback!r} is not a callback of Keras, such as keras.callbacks.CSVLogger(...)")
        self.callback = callback
        frequencies = getattr(callback, "save_freq", None), getattr(callback, "update_freq", None)
        self._by_step = "epoch" not in frequencies and any(_overrides(callback, hook) for hook in _BATCH_HOOKS)
        monitored = f"/{callback.monitor}" if hasattr(callback, "monitor") else ""
        self.state_key = state_key or f"keras.{self.name}{monitored}"

    @property
    def name(self) -> str:
        return type(self.callback).__name__

    @property
    def at_end(self) -> bool:  # type: ignore[override]
        """Whether a run that ends within an epoch calls `on_epoch_end`: if a callback stopped it, as in Keras."""
        return self._model is not None and bool(self._model.stop_training)

    def overrides(self, hook: str) -> bool:
        return super().overrides(hook) and (hook != "trigger_step" or self._by_step)

    def setup(self) -> None:
        trainer = self.trainer
        if isinstance(self.callback, keras.callbacks.BackupAndRestore) and trainer.experiment is not None:
            raise CallbackError("leave out BackupAndRestore: the experiment resumes by its own checkpoints")
        self._restored: dict[str, Any] = {"values": {}, "begun": -1, "stopped": False}
        self._at_begin: dict[str, str] | None = None  # the attributes, before training changes them
        self._logs: tuple[tuple[str, int], dict[str, Any]] = (("", -1), {})
        self._model = trainer.keras_model
        if self._model is None:
            self._model = TrainerWithoutKerasModel(optimizer=trainer.optimizer, stop_training=False)
        if isinstance(self.callback, _SETS_RATE) and trainer.callbacks.of_class(LearningRate):
            raise CallbackError(f"{self.name} and LearningRate both set the learning rate; leave one of them out")
        self.callback.set_params({"epochs": trainer.max_epoch, "steps": trainer.steps_per_epoch, "verbose": 0})
        self.callback.set_model(self._model)

    def before_train(self) -> None:
        trainer, callback, restored = self.trainer, self.callback, self._restored
        self._begun, self._stopped = restored["begun"], False  # the last step that began
        self._model.stop_training = False
        if self._begun >= 0 and isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True
        self._call("on_train_begin", {})
        self._at_begin = _plain_attributes(callback)
        for name, text in restored["values"].items():
            setattr(callback, name, decode(json.loads(text)))
        may_wait = isinstance(callback, keras.callbacks.EarlyStopping) and callback.wait < callback.patience
        if restored["stopped"] and not may_wait:  # continue if the user has increased the patience
            self._stopped = True
            raise StopTraining(f"{self.name} had stopped the run")
        if self._by_step and trainer.local_step and not trainer.callbacks.unfinished:
            self._begin_batch()  # a resumed epoch has no second on_epoch_begin

    def before_epoch(self) -> None:
        if self.trainer.local_step == 0 and self._begun != self.trainer.global_step:
            self._call("on_epoch_begin", self.trainer.epoch_num - 1, {})
        self._begin_batch()

    def trigger_step(self) -> None:
        logs = self._shared("batch", self.trainer._fit_logs())
        self._call("on_train_batch_end", self.trainer.local_step - 1, logs)
        self._begin_batch()

    def trigger_epoch(self) -> None:
        self._call("on_epoch_end", self.trainer.epoch_num - 1, self._epoch_logs())

    def after_train(self) -> None:
        if self.trainer.global_step >= self.trainer.total_steps and not self.trainer.callbacks.unfinished:
            if _overrides(self.callback, "on_train_end"):  # it may replace the weights
                save_ahead(self.trainer)
            self.callback.on_train_end(self._epoch_logs())

    def state_dict(self) -> dict[str, Any]:
        if self._at_begin is None:
            return self._restored
        before = self._at_begin.items()
        values = {name: text for name, text in _plain_attributes(self.callback).items() if (name, text) not in before}
        return {"values": values, "begun": self._begun, "stopped": self._stopped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored = state

    def _call(self, hook: str, *arguments: Any) -> None:
        getattr(self.callback, hook)(*arguments)
        if self._model.stop_training:
            self._stopped = True
            raise StopTraining(f"requested by {self.name}")

    def _begin_batch(self) -> None:
        trainer, step = self.trainer, self.trainer.global_step
        is_over = trainer.local_step >= trainer.steps_per_epoch or step >= trainer.total_steps
        if not is_over and self._begun != step:
            self._begun = step
            if self._by_step:
                self._call("on_train_batch_begin", trainer.local_step, {})

    def _epoch_logs(self) -> dict[str, Any]:
        trainer = self.trainer
        logs = trainer._fit_logs()
        for name in trainer.monitors.names():
            step, value = trainer.monitors.history(name)[-1]
            if name.startswith("vld/") and step > trainer.global_step - trainer.local_step:
                logs[f"val_{name.removeprefix('vld/')}"] = value
        return self._shared("epoch", logs)

    def _shared(self, of: str, logs: dict[str, Any]) -> dict[str, Any]:
        """Return the logs that all Keras callbacks of a step share, so that each sees the values earlier ones add."""
        first = next(iter(self.trainer.callbacks.of_class(KerasCallback)), self)
        now = (of, self.trainer.global_step)
        if first._logs[0] != now:
            first._logs = (now, {})
        for name, value in logs.items():
            first._logs[1].setdefault(name, value)
        return first._logs[1]


class TrainerWithoutKerasModel(SimpleNamespace):
    """A placeholder for the Keras model of a trainer that has none. Its name appears in errors."""


def _plain_attributes(callback: keras.callbacks.Callback) -> dict[str, str]:
    """Return the attributes that can be encoded as JSON, as JSON strings by name."""
    found = {}
    for name, value in vars(callback).items():
        with suppress(CheckpointError):
            if name not in CALLBACK_SCRATCH:
                found[name] = json.dumps(encode(value, name))
    return found


def _overrides(callback: keras.callbacks.Callback, hook: str) -> bool:
    method = getattr(callback, hook)  # from the instance: keras.callbacks.LambdaCallback sets its functions there
    return getattr(method, "__func__", method) is not getattr(keras.callbacks.Callback, hook)
