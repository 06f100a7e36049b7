"""Records each step of a run for `prototrain verify`.

`Trainer.train` imports this module only if the environment variable `PROTOTRAIN_VERIFY` is set, to the directory of a
record. In this directory, ``plan.json`` contains the number of steps and the steps of saves and interruptions. Each
event adds a line to ``record.jsonl``, which is written at once, so that a SIGKILL loses nothing.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback, Priority
from prototrain.callbacks.monitor import Monitor
from prototrain.checkpoint.state import StateEntries
from prototrain.errors import StopTraining
from prototrain.experiment import Experiment
from prototrain.experiment.experiment import VERIFY
from prototrain.experiment.rows import is_repeatable
from prototrain.towers import components
from prototrain.verify import OF_CALLBACK

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_IDLE = 3  # number of train() calls without a step after which the program is ended


def record(trainer: Trainer, callbacks: Any) -> list[Callback]:
    """Record a run; its experiment directory is placed below the directory of the record.

    Returns:
        the callbacks, and those that record and interrupt the run.
    """
    recording, given = _recording(), trainer.experiment
    trainer.experiment = Experiment.of_run(f"trainer {next(recording.numbers)}" if given is None else str(given))
    key = trainer.experiment.directory.name
    if "run_step" not in vars(trainer):  # otherwise an earlier train() has wrapped it
        _record_steps(trainer, recording)
    if (xla := getattr(trainer, "_xla", None)) is not None:
        xla.turn_off("a verification needs the same form in all its runs")
    return [*callbacks, Recorder(recording, key), Interrupter(recording, key)]


class Recording:
    """The record of the current process.

    Args:
        directory: the directory with ``plan.json``.
    """

    def __init__(self, directory: Path) -> None:
        plan = json.loads((directory / "plan.json").read_text(encoding="utf-8"))
        self.steps: int = plan["steps"]
        self.saves = frozenset(plan["saves"])
        self._path = directory / "record.jsonl"
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        done = sum(json.loads(line)["kind"] == "interrupt" for line in lines)
        self._interruptions: list[list[Any]] = plan["interruptions"][done:]
        self.numbers = itertools.count(1)  # numbers of the trainers without an experiment
        self.idle = 0
        self.batches: list[str] = []  # digests of the batches of the current step
        self.is_in_step = False

    def write(self, kind: str, trainer: str, step: int, **more: Any) -> None:
        """Append a line for an event."""
        line = json.dumps({"kind": kind, "trainer": trainer, "step": step, **more})
        with open(self._path, "ab", buffering=0) as file:
            file.write(line.encode() + b"\n")

    def interrupt(self, trainer: str, step: int) -> None:
        """Interrupt this process, if the plan has an interruption at this step."""
        if self._interruptions and self._interruptions[0][:2] == [trainer, step]:
            signum = self._interruptions.pop(0)[2]
            self.write("interrupt", trainer, step, signal=signal.Signals(signum).name)
            os.kill(os.getpid(), signum)


@functools.cache
def _recording() -> Recording:
    """Return the record of this process, and record all batches that a Python `run_step` reads from tf.data."""
    recording = Recording(Path(os.environ[VERIFY]))
    kind = type(iter(tf.data.Dataset.range(1)))
    for name in ("__next__", "get_next"):
        read = getattr(kind, name)

        def next_batch(*args: Any, _read: Any = read) -> Any:
            batch = _read(*args)
            if recording.is_in_step:
                recording.batches.append(digest(*_tensors(batch)))
            return batch

        setattr(kind, name, next_batch)
    return recording


def _record_steps(trainer: Any, recording: Recording) -> None:
    """Record digests of the batches of each step: those of `train_step`, else those that `run_step` reads."""
    run_step, train_step = trainer.run_step, getattr(trainer, "train_step", None)

    @functools.wraps(run_step)
    def recorded_run_step() -> Any:
        recording.is_in_step = True
        try:
            return run_step()
        finally:
            recording.is_in_step = False

    trainer.run_step = recorded_run_step
    if train_step is None:
        return

    @functools.wraps(train_step)
    def recorded_train_step(inputs: dict[str, Any]) -> Any:
        if not trainer.data.block:  # XLA cannot compile the op below; see `Recorder.trigger_step`
            with tf.device("CPU:0"):
                tf.numpy_function(lambda *tensors: recording.batches.append(digest(*tensors)), _tensors(inputs), [])
        return train_step(inputs)

    trainer.train_step = recorded_train_step


class Recorder(Monitor):
    """Records the state right after the restore, and each step before the other callbacks run."""

    chief_only = False
    priority: int = Priority.EVALUATE - 10_000

    def __init__(self, recording: Recording, key: str) -> None:
        self._recording = recording
        self._key = key
        self._held: dict[str, str] = {}

    def before_train(self) -> None:
        recording, held = self._recording, self._held
        if self.trainer.is_chief:
            now = self._digests()
            lost = sorted(name for name in held.keys() | now if held.get(name) != now.get(name)) if held else []
            self._write("start", variables=now, lost=lost)
        self._held = {}
        if self.trainer.global_step >= recording.steps:
            recording.idle += 1
            if recording.idle > _IDLE:
                raise SystemExit(0)
            raise StopTraining(f"all {recording.steps} steps of the verification are made")

    def trigger_step(self) -> None:
        recording, data = self._recording, getattr(self.trainer, "data", None)
        if not self.trainer.is_chief:
            return
        if data is not None and data.block:
            recording.batches.append(digest(*_tensors(data.last_of_block)))
        scalars = {name: _bits(value) for name, value in self.trainer.outputs.items()}
        batches = sorted(recording.batches)  # the order of the towers varies
        recording.batches.clear()
        self._write("step", batches=batches, scalars=scalars, variables=_state_digests(self.trainer))

    def put_scalars(self, values: Mapping[str, float], step: int) -> None:
        if self.trainer.is_chief and (found := {name: _bits(v) for name, v in values.items() if is_repeatable(name)}):
            self._recording.write("scalars", self._key, step, scalars=found)

    def after_train(self) -> None:
        if self.trainer.is_chief:
            self._write("end", variables=self._digests())

    def state_dict(self) -> dict[str, Any]:
        return self._digests()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._held = dict(state)

    def _write(self, kind: str, **more: Any) -> None:
        self._recording.write(kind, self._key, self.trainer.global_step, **more)

    def _digests(self) -> dict[str, str]:
        found = _state_digests(self.trainer)
        for callback in self.trainer.callbacks:
            if callback.overrides("state_dict") and callback is not self:
                state = json.dumps(callback.state_dict(), sort_keys=True, default=digest)
                found[f"{OF_CALLBACK}{callback.state_key or callback.name}"] = digest(state)
        return found


class Interrupter(Callback):
    """Saves, interrupts and ends the run as planned, after all other callbacks of a step."""

    chief_only = False
    priority: int = Priority.SAVE + 10_000

    def __init__(self, recording: Recording, key: str) -> None:
        self._recording = recording
        self._key = key
        self._done = -1

    def trigger_step(self) -> None:
        trainer = self.trainer
        if trainer.local_step < trainer.steps_per_epoch and trainer.global_step < trainer.total_steps:
            self.trigger()

    def trigger(self) -> None:
        trainer, recording, step = self.trainer, self._recording, self.trainer.global_step
        if trainer.is_chief and self._done != step:
            self._done = step
            if step in recording.saves or step >= min(recording.steps, trainer.total_steps):
                trainer.save()
                recording.write("saved", self._key, step)
            recording.interrupt(self._key, step)
        if step >= recording.steps:
            raise StopTraining(f"all {recording.steps} steps of the verification are made")


def _state_digests(trainer: Trainer) -> dict[str, str]:
    """Return digests of the entries of `trainer.state`, by name."""
    entries, found = StateEntries(trainer.state), {}
    for name, variable in entries.variables.items():
        is_array = isinstance(variable, np.ndarray)
        found[name] = digest(*([variable] if is_array else (copy.numpy() for copy in components(variable))))
    for name, value in entries.values().items():
        found.setdefault(name, digest(json.dumps(value, sort_keys=True, default=digest)))
    return found


def digest(*values: Any) -> str:
    """Return a short digest of the dtype, shape and bits of arrays, tensors and plain values."""
    found = hashlib.blake2b(digest_size=8)
    for value in values:
        array = np.asarray(value)
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _tensors(batch: Any) -> list[Any]:
    return [one for one in tf.nest.flatten(batch, expand_composites=True) if one.dtype != tf.variant]


def _bits(value: Any) -> str:
    """Return a number as hexadecimal text without loss, and a digest of any other value."""
    array = np.asarray(value)
    return digest(array) if array.size != 1 or array.dtype == object else float(array.reshape(())).hex()
