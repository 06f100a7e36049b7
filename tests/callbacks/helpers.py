"""Callbacks that create situations for the tests of other callbacks."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prototrain import Callback
from prototrain.callbacks import CallbackFactory
from prototrain.experiment import checkpoint_steps
from tests.tiny import Recorder

UNLIMITED = resource.getrlimit(resource.RLIMIT_FSIZE)


class Puts(Callback):
    """Records given scalars after given steps."""

    def __init__(self, **by_step: dict[str, Any]) -> None:
        self.by_step = {int(key[1:]): scalars for key, scalars in by_step.items()}

    def trigger_step(self) -> None:
        for name, value in self.by_step.get(self.trainer.global_step, {}).items():
            self.trainer.monitors.put_scalar(name, value)


def measures(name: str, value: Callable[[int], float]) -> Callback:
    """A callback that records a scalar after each step; `value` takes the step."""
    record = CallbackFactory(trigger=lambda me: me.trainer.monitors.put_scalar(name, value(me.trainer.global_step)))
    return record.every(steps=1)


class StepRecorder(Recorder):
    """Also records the steps at which `trigger_step` is called."""

    def trigger_step(self) -> None:
        self._note("trigger_step")


def timed(callback: Any, clock: Callable[[], float]) -> Any:
    """A callback that reads another clock."""
    callback.clock = clock
    return callback


def kept(experiment: Path) -> list[str]:
    """The names of the checkpoints, also of those that were set aside."""
    return sorted(path.name for path in (experiment / "checkpoints").iterdir())


def kept_steps(experiment: Path) -> list[int]:
    """The steps of the checkpoints that a resume can use."""
    return checkpoint_steps(experiment / "checkpoints")


class EachStep(Callback):
    """Makes each compiled call one step long."""

    def trigger_step(self) -> None:
        pass


class Fails(Callback):
    """Raises after all other callbacks of a step."""

    priority = 1000

    def __init__(self, step: int, error: type[BaseException] = RuntimeError) -> None:
        self.step, self.error = step, error

    def trigger_step(self) -> None:
        if self.trainer.global_step == self.step:
            raise self.error("on purpose")


class FillsDisk(Callback):
    """Limits the size of files between two steps. The fixture `disk` removes the limit."""

    priority = 0

    def __init__(self, first: int, last: int, size: int) -> None:
        self.first, self.last, self.size = first, last, size

    def trigger_step(self) -> None:
        if self.trainer.global_step == self.first:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, UNLIMITED[1]))
        elif self.trainer.global_step == self.last:
            resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)
