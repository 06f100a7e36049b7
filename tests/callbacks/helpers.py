"""Callbacks that create situations for the tests of other callbacks."""

from __future__ import annotations

import resource
from typing import Any

from prototrain import Callback

UNLIMITED = resource.getrlimit(resource.RLIMIT_FSIZE)


class Puts(Callback):
    """Records given scalars after given steps."""

    def __init__(self, **by_step: dict[str, Any]) -> None:
        self.by_step = {int(key[1:]): scalars for key, scalars in by_step.items()}

    def trigger_step(self) -> None:
        for name, value in self.by_step.get(self.trainer.global_step, {}).items():
            self.trainer.monitors.put_scalar(name, value)


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
