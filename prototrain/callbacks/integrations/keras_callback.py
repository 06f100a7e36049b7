"""Keras's own callbacks in prototrain's list."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from prototrain.callbacks.base import Callback, Priority, innermost
from prototrain.callbacks.saving.save_on_exit import save_ahead
from prototrain.checkpoint.json_codec import decode, encode
from prototrain.config import json_form
from prototrain.errors import CallbackError, CheckpointError, ConfigError, StopTraining
from prototrain.private_api.of_keras import CALLBACK_SCRATCH
from prototrain.system.files import write_atomic
from prototrain.system.waiting import announcing

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_VALIDATION = "vld/"
_FUNCTION = "function "  # before its name
_LARGEST = 1 << 24  # characters of an attribute as JSON


class KerasCallback(Callback):
    """Calls a Keras callback as `fit` would.

    Its `logs` are those of `fit` where the trainer is a `KerasTrainer`, else the scalars of the step; at the end of an
    epoch with what `Validation` has recorded in it as ``vld/<name>`` under ``val_<name>``. With
    another trainer there is no Keras model, and a callback that asks for one gets an error; its optimizer and
    `stop_training` are there.

    A callback that overrides a batch hook is called after every step, which makes each compiled call one step long;
    one with ``save_freq="epoch"`` or ``update_freq="epoch"`` is not.

    The attributes that change while training are part of every checkpoint if they hold plain values: numbers, texts,
    arrays, functions of a module, and lists, tuples and dicts of plain values, up to 16 MB each. A resumed run warns
    of other attributes that were replaced, such as the weights of a large model that `keras.callbacks.EarlyStopping`
    keeps.
    `on_train_end` is called when the run has reached its end, not when a signal or an error ended it. The last
    checkpoint is written before it and holds what was trained, whatever weights it puts back. `on_epoch_end` is not
    called for an epoch that the end of the run cuts short.

    Args:
        callback: such as ``keras.callbacks.ReduceLROnPlateau()``.
        state_key: what its state is called in a checkpoint; by default its class and what it monitors.

    Raises:
        CallbackError: it is no Keras callback; when a run begins, if it is a `BackupAndRestore` and the run has an
            experiment; while training, if it needs a Keras model and there is none.
    """

    at_end = False
    priority = Priority.DECIDE

    def __init__(self, callback: keras.callbacks.Callback, *, state_key: str | None = None) -> None:
        if not isinstance(callback, keras.callbacks.Callback):
            raise CallbackError(
                f"KerasCallback takes a Keras callback, such as keras.callbacks.CSVLogger(...), not {callback!r}"
            )
        if isinstance(callback, keras.callbacks.CallbackList):
            raise CallbackError(
                "KerasCallback takes one Keras callback, not a CallbackList; wrap each of its callbacks"
            )
        self.callback = callback
        self._by_step = any(_overrides(callback, hook) for hook in _BATCH_HOOKS) and "epoch" not in (
            getattr(callback, "save_freq", None),
            getattr(callback, "update_freq", None),
        )
        monitored = f"/{callback.monitor}" if hasattr(callback, "monitor") else ""
        self.state_key = state_key or f"keras.{self.name}{monitored}"

    @property
    def name(self) -> str:
        return type(self.callback).__name__

    @property
    def wraps(self) -> keras.callbacks.Callback:
        return self.callback

    def setup(self) -> None:
        trainer = self.trainer
        if isinstance(self.callback, keras.callbacks.BackupAndRestore) and trainer.experiment is not None:
            raise CallbackError(
                "BackupAndRestore would replace the weights of the checkpoint: leave it out, the "
                "experiment resumes without it"
            )
        self._restored: dict[str, Any] = {
            "values": {},
            "inside": {},
            "lost": [],
            "called": {},
            "ended": 0,
            "stopped": False,
        }
        self._at_begin: dict[str, str] | None = None
        self._logs: tuple[tuple[str, int], dict[str, Any]] = (("", -1), {})
        self._model = _NoModel(self.name, trainer) if trainer.keras_model is None else trainer.keras_model
        self.callback.set_params({"epochs": trainer.max_epoch, "steps": trainer.steps_per_epoch, "verbose": 0})
        self.callback.set_model(self._model)
        if trainer.keras_model is None:  # which would call these hooks itself
            trainer.evaluation_scopes.append(self._testing)

    def before_train(self) -> None:
        restored = self._restored
        self._called: dict[str, int] = dict(restored["called"])
        self._ended, self._stopped = restored["ended"], restored["stopped"]
        self._model.stop_training = False
        if self._called and isinstance(self.callback, keras.callbacks.CSVLogger):
            self.callback.append = True
            _forget_rows(self.callback, self._ended)
        what = f"on_train_begin of {self.name}"
        with announcing(what, self.trainer.log), self.trainer.stop.waiting_for(what):
            self._call("on_train_begin", None)
        self._at_begin, self._objects = _plain_attributes(self.callback), dict(vars(self.callback))
        for name, text in restored["values"].items():
            setattr(self.callback, name, _from_text(text))
        if self._stopped and not self._has_more_patience():
            raise StopTraining(f"{self.name} had stopped the run")
        self._stopped = False
        if self.trainer.local_step and not self.trainer.callbacks.unfinished:
            self._begin_batch()  # within an epoch, which does not begin again

    def _has_more_patience(self) -> bool:
        """Whether what had stopped the run is to wait for longer now."""
        stopping = self.callback
        return isinstance(stopping, keras.callbacks.EarlyStopping) and stopping.wait < stopping.patience

    def before_epoch(self) -> None:
        if self.trainer.local_step == 0:
            self._call_once("on_epoch_begin", self.trainer.epoch_num - 1, None)
        self._begin_batch()

    def overrides(self, hook: str) -> bool:
        return super().overrides(hook) and (hook != "trigger_step" or self._by_step)

    def trigger_step(self) -> None:
        logs = self._shared("batch", self.trainer._fit_logs())
        self._call_once("on_train_batch_end", self.trainer.local_step - 1, logs)
        self._begin_batch()

    def trigger_epoch(self) -> None:
        self._ended = self.trainer.epoch_num
        self._call_once("on_epoch_end", self.trainer.epoch_num - 1, self._shared("epoch", self._epoch_logs()))

    def after_train(self) -> None:
        if self.trainer.global_step >= self.trainer.total_steps and not self.trainer.callbacks.unfinished:
            if _overrides(self.callback, "on_train_end"):  # which may put other weights in place
                save_ahead(self.trainer)
            self.callback.on_train_end(self._shared("epoch", self._epoch_logs()))

    def state_dict(self) -> dict[str, Any]:
        if self._at_begin is None:
            return self._restored
        attributes, now = vars(self.callback), _plain_attributes(self.callback)
        return {
            "values": {name: text for name, text in now.items() if self._at_begin.get(name) != text},
            "lost": [
                name
                for name, value in attributes.items()
                if name not in now and name not in CALLBACK_SCRATCH and value is not self._objects.get(name)
            ],
            "called": self._called,
            "ended": self._ended,
            "stopped": self._stopped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored = state
        for name in state["lost"]:
            self.trainer.log(f"WARNING: the checkpoint does not hold {self.name}.{name}, which cannot be saved")

    # -- how Keras callbacks are called -------------------------------------------------------------------------------

    def _call_once(self, hook: str, number: int, logs: dict[str, Any] | None) -> None:
        """Call a hook, unless it was called for this step before the run was resumed."""
        if self._called.get(hook) != self.trainer.global_step:
            self._called[hook] = self.trainer.global_step
            self._call(hook, number, logs)

    def _call(self, hook: str, *arguments: Any) -> None:
        getattr(self.callback, hook)(*arguments)
        if self._model.stop_training:
            self._stopped = True
            raise StopTraining(f"{self.name} asked for it")

    def _shared(self, of: str, logs: dict[str, Any]) -> dict[str, Any]:
        """The one dict that all of Keras's callbacks get at a step: what one of them puts there the next ones find."""
        each = (inner for inner in map(innermost, self.trainer.callbacks) if isinstance(inner, KerasCallback))
        first, now = next(each, self), (of, self.trainer.global_step)
        if first._logs[0] != now:
            first._logs = (now, {})
        for name, value in logs.items():
            first._logs[1].setdefault(name, value)
        return first._logs[1]

    def _begin_batch(self) -> None:
        trainer = self.trainer
        over = trainer.local_step >= trainer.steps_per_epoch or trainer.global_step >= trainer.total_steps
        if self._by_step and not over:
            self._call_once("on_train_batch_begin", trainer.local_step, {})

    def _epoch_logs(self) -> dict[str, Any]:
        trainer = self.trainer
        logs = trainer._fit_logs()
        for name in trainer.monitors.names():
            step, value = trainer.monitors.history(name)[-1]
            if name.startswith(_VALIDATION) and step > trainer.global_step - trainer.local_step:
                logs[f"val_{name.removeprefix(_VALIDATION)}"] = value
        return logs

    @contextmanager
    def _testing(self) -> Iterator[None]:
        self.callback.on_test_begin({})
        yield
        self.callback.on_test_end({})


class _NoModelError(CallbackError, AttributeError):
    """An AttributeError too, for callbacks that ask whether the model has something."""


class _NoModel:
    """Stands in for the Keras model where there is none."""

    def __init__(self, callback: str, trainer: Trainer) -> None:
        self._who, self._where = callback, type(trainer).__name__
        self._trainer = trainer
        self.stop_training = False

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer" and self._trainer.optimizer is not None:
            return self._trainer.optimizer  # another one once weights are frozen or unfrozen
        raise _NoModelError(
            f"{self._who} asks for the {name} of a Keras model, which {self._where} has not; train the model with "
            "KerasTrainer, or use one of prototrain's own callbacks"
        )


def _plain_attributes(callback: keras.callbacks.Callback) -> dict[str, str]:
    """The attributes that JSON can hold, as JSON. Of a function it is the name."""
    found = {}
    for name, value in vars(callback).items():
        with suppress(CheckpointError, ConfigError):
            if callable(value):
                text = f"{_FUNCTION}{json_form.encode(value, name, [])}"
            else:
                text = json.dumps(encode(value, name))
            is_same = not callable(value) or _from_text(text) is value
            if is_same and name not in CALLBACK_SCRATCH and len(text) <= _LARGEST:
                found[name] = text
    return found


def _from_text(text: str) -> Any:
    if text.startswith(_FUNCTION):
        return json_form.decode(text.removeprefix(_FUNCTION), "", [""])
    return decode(json.loads(text))


def _overrides(callback: keras.callbacks.Callback, hook: str) -> bool:
    method = getattr(callback, hook)  # of the instance, where keras.callbacks.LambdaCallback puts its functions
    return getattr(method, "__func__", method) is not getattr(keras.callbacks.Callback, hook)


def _forget_rows(logger: keras.callbacks.CSVLogger, epochs: int) -> None:
    """Take out of a logger's file what was written after so many epochs: a run that was killed does those again."""
    path = Path(logger.filename)
    if not path.is_file():
        return
    lines = path.read_bytes().decode().splitlines(keepends=True)  # with the line ends that it has
    rows = csv.DictReader(lines, delimiter=logger.sep)
    column = (rows.fieldnames or []).index("epoch") if "epoch" in (rows.fieldnames or []) else None
    if column is None:
        return

    def stays(line: str) -> bool:
        cells = next(csv.reader([line], delimiter=logger.sep), [])
        return len(cells) > column and line.endswith("\n") and cells[column].isdigit() and int(cells[column]) < epochs

    write_atomic(path, "".join([lines[0], *filter(stays, lines[1:])]))
