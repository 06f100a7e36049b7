"""Callbacks that put a run into the situations that the tests of other callbacks are about."""

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
    """Makes the loop ask for each step."""

    def trigger_step(self) -> None:
        pass


class Fails(Callback):
    """Raises after a step, once everything else of that step has happened."""

    priority = 1000

    def __init__(self, step: int, error: type[BaseException] = RuntimeError) -> None:
        self.step, self.error = step, error

    def trigger_step(self) -> None:
        if self.trainer.global_step == self.step:
            raise self.error("on purpose")


class FillsDisk(Callback):
    """Lets no file grow beyond a size, from one step to another. The fixture `disk` takes the limit back."""

    priority = 0

    def __init__(self, first: int, last: int, size: int) -> None:
        self.first, self.last, self.size = first, last, size

    def trigger_step(self) -> None:
        if self.trainer.global_step == self.first:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, UNLIMITED[1]))
        elif self.trainer.global_step == self.last:
            resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)
