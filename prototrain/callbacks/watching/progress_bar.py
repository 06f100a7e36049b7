"""How far the run is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from tqdm.auto import tqdm

from prototrain.callbacks.base import Callback, Priority
from prototrain.callbacks.monitor import as_number
from prototrain.system.signals import in_notebook


class ProgressBar(Callback):
    """Shows epoch, step, speed and loss as a bar on a terminal or in a notebook, and as plain lines elsewhere.

    Args:
        refresh_seconds: how often the bar moves.
        line_seconds: how often a line is printed where there is no terminal.
        clock: returns the time in seconds.
    """

    priority = Priority.WRITE

    def __init__(
        self,
        *,
        refresh_seconds: float = 0.5,
        line_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._refresh_seconds = refresh_seconds
        self._line_seconds = line_seconds
        self._clock = clock
        self._bar: Any = None

    def before_train(self) -> None:
        trainer = self.trainer
        self._begin = self._shown = self._clock()
        self._first_step = trainer.global_step
        self._total = None if trainer.is_endless else trainer.total_steps
        live = is_live()
        self._interval = self._refresh_seconds if live else self._line_seconds
        if live:
            self._bar = tqdm(total=self._total, initial=trainer.global_step, unit=" steps", dynamic_ncols=True)

    def next_step(self, step: int) -> int | None:
        # A bar shows the first step as soon as it is done; tracing it can take a while.
        first = self._bar is not None and step == self._first_step
        return step + 1 if first or self._clock() - self._shown >= self._interval else self._total

    def trigger_step(self) -> None:
        self._shown = self._clock()
        if self._bar is None:
            self.trainer.log(self._line())
        else:
            self._move()

    def after_train(self) -> None:
        if self._bar is not None:
            self._move()
            self._bar.close()
            self._bar = None

    def _move(self) -> None:
        trainer = self.trainer
        self._bar.set_description(self._epoch(), refresh=False)
        if "loss" in trainer.outputs:
            self._bar.set_postfix(loss=self._loss(), refresh=False)
        self._bar.update(trainer.global_step - self._bar.n)
        self._bar.refresh()

    def _line(self) -> str:
        step, total = self.trainer.global_step, self._total
        speed = (step - self._first_step) / max(self._shown - self._begin, 1e-9)
        words = [self._epoch(), f"step {step}" + (f" of {total}" if total else ""), f"{speed:.4g} steps/s"]
        if total and step < total and speed:
            words.append(f"{tqdm.format_interval((total - step) / speed)} left")
        if "loss" in self.trainer.outputs:
            words.append(f"loss {self._loss()}")
        return ", ".join(words)

    def _epoch(self) -> str:
        trainer = self.trainer
        return f"epoch {trainer.epoch_num}" + (
            f" of {-(-self._total // trainer.steps_per_epoch)}" if self._total else ""
        )

    def _loss(self) -> str:
        return f"{as_number('loss', self.trainer.outputs['loss']):.4g}"


def is_live() -> bool:
    """Whether a bar can redraw itself: on a terminal and in a notebook."""
    return sys.stderr.isatty() or in_notebook()
