"""Progress bar."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from tqdm.auto import tqdm

from prototrain.callbacks.base import Callback, Priority
from prototrain.callbacks.monitor import as_number
from prototrain.errors import CallbackError
from prototrain.system.terminal import in_notebook, is_terminal, matching

_BAR_SECONDS, _LINE_SECONDS = 0.5, 10.0  # between two updates
_WIDE = 100  # columns of a terminal that has room for the epoch


class ProgressBar(Callback):
    """Shows progress, speed and scalars as a bar in a terminal or notebook, and as plain lines elsewhere.

        ProgressBar(scalars=["loss", "vld/*"])

    Args:
        scalars: names of the step's scalars, such as ``loss``, and of recorded scalars, such as ``vld/accuracy``, or
            patterns with ``*``. The bar shows their latest values and skips scalars without a value.

    Raises:
        CallbackError: `scalars` is a string.
    """

    priority = Priority.WRITE
    clock = staticmethod(time.monotonic)

    def __init__(self, *, scalars: Sequence[str] = ("loss",)) -> None:
        if isinstance(scalars, str):
            raise CallbackError(f"ProgressBar takes a list of names of scalars, not the text {scalars!r}")
        self._scalars = list(scalars)
        self._bar: Any = None

    def before_train(self) -> None:
        trainer = self.trainer
        self._started_at = self._shown_at = self.clock()
        self._first_step = trainer.global_step
        self._total = None if trainer.is_endless else trainer.total_steps
        if (is_terminal(sys.stderr) or in_notebook()) and trainer.global_step < trainer.total_steps:
            self._bar = tqdm(total=self._total, initial=trainer.global_step, unit=" steps", dynamic_ncols=True)

    def next_step(self, step: int) -> int | None:
        # Update the bar right after the first step, whose tracing can take a while.
        is_first = self._bar is not None and step == self._first_step
        pause = _LINE_SECONDS if self._bar is None else _BAR_SECONDS
        return step + 1 if is_first or self.clock() - self._shown_at >= pause else self._total

    def trigger_step(self) -> None:
        self._shown_at = self.clock()
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
        if shutil.get_terminal_size().columns >= _WIDE:
            self._bar.set_description(self._epoch(), refresh=False)
        self._bar.set_postfix(self._shown_scalars(), refresh=False)
        self._bar.update(self.trainer.global_step - self._bar.n)
        self._bar.refresh()

    def _line(self) -> str:
        step, total = self.trainer.global_step, self._total
        speed = (step - self._first_step) / max(self._shown_at - self._started_at, 1e-9)
        words = [self._epoch(), f"step {step}" + (f" of {total}" if total else ""), f"{speed:.4g} steps/s"]
        if total and step < total and speed:
            words.append(f"{tqdm.format_interval((total - step) / speed)} left")
        words += [f"{name} {value}" for name, value in self._shown_scalars().items()]
        return ", ".join(words)

    def _epoch(self) -> str:
        epochs = f" of {-(-self._total // self.trainer.steps_per_epoch)}" if self._total else ""
        return f"epoch {self.trainer.epoch_num}{epochs}"

    def _shown_scalars(self) -> dict[str, str]:
        monitors, outputs = self.trainer.monitors, self.trainer.outputs
        recorded = {name: monitors.latest(name) for name in monitors.names()}
        values = {**outputs, **recorded, **{f"trn/{name}": value for name, value in outputs.items()}}
        return {name: f"{as_number(name, values[name]):.4g}" for name in matching(values, self._scalars)}
