"""The tables and lines that a run prints before its first step and after its last step."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from itertools import islice
from typing import Any

from prototrain.system.terminal import format_duration, format_number, plain_table
from prototrain.towers import why_no_gpu

_ORDER = (
    *("model", "trainer", "towers", "devices", "precision", "data", "global batch"),
    *("steps", "epochs", "optimizer", "directory", "start"),
)


def opening(trainer: Any) -> str:
    """Return the table at the start of a run, or one line if there is nothing to do."""
    if trainer.run.has_nothing_to_do:
        what = "raise max_steps or use fresh=True"
        if (config := trainer.config) is not None:
            what = f"raise model.num_{'steps' if config['model.num_epochs'] is None else 'epochs'} or use --fresh"
        return f"nothing to do: step {trainer.global_step} of {trainer.total_steps} is done; {what}"
    given = trainer.describe()
    first = [name for name in _ORDER if name in given]
    rows = {name: given[name] for name in dict.fromkeys([*first, *given]) if given[name] is not None}
    warning = why_no_gpu()
    return "\n\n".join([plain_table(rows), *([] if warning is None else [warning])]) + "\n"


def closing(trainer: Any) -> str | None:
    """Return the best values, the paths of the run's files and useful commands, or None if the run wrote no files."""
    experiment = trainer.experiment
    if experiment is None or not experiment.exists():
        return None
    best = [f"{name} {format_number(value)} at step {step}" for name, (step, value) in trainer.monitors.best().items()]
    rows = {"best": "\n".join(best)} if best else {}
    checkpoints = trainer.run.checkpoints
    steps = checkpoints.steps()
    if steps:
        rows["checkpoints"] = f"{experiment.shown(experiment.checkpoints)} (newest: {checkpoints.path(steps[-1]).name})"
    if experiment.metrics.exists():
        rows["metrics"] = experiment.shown(experiment.metrics)
    rows["log"] = experiment.shown(experiment.log)
    commands = [f"prototrain report {shlex.quote(str(experiment))}"] if experiment.metrics.exists() else []
    if experiment.summaries.is_dir():
        commands.append(f"tensorboard --logdir {shlex.quote(str(experiment.summaries))}")
    if commands:
        rows["next"] = "\n".join(commands)
    return "\n" + plain_table(rows, width=None)


_NAMED_SHARE = 0.05


class RunTimes:
    """Measures how a run spends its time, in seconds.

    Attributes:
        steps: time in `run_steps`, without tracing.
        tracing: time in the first compiled call, which is mostly tracing.
        input: time spent waiting for a batch; it is a part of `steps`.
    """

    clock = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Reset all times at the start of a run."""
        self.began = self.clock()
        self.steps = self.tracing = self.input = 0.0

    def add_call(self, *, tracing: float, waiting: float) -> None:
        """Add the times of a compiled call. Its tracing time is subtracted from the time of the steps."""
        self.tracing += tracing
        self.steps -= tracing
        self.input += waiting

    def loop(self) -> dict[str, float]:
        """Return the times by name."""
        return {"steps": self.steps, "waiting for input": self.input, "tracing": self.tracing}

    def report(self, callbacks: Mapping[str, float]) -> str:
        """Return a line with the shares of the time. `callbacks` are seconds by name, the longest first."""
        total = max(self.clock() - self.began, 1e-9)
        steps = f"training {max(self.steps, 0.0) / total:.0%}"
        if self.input > _NAMED_SHARE * total:
            steps += f" (input {self.input / total:.0%})"
        others = {"compiling": self.tracing, **dict(islice(callbacks.items(), 1))}  # run.json has all callbacks
        named = {name: taken for name, taken in others.items() if taken > _NAMED_SHARE * total}
        shares = [f"{name} {taken / total:.0%}" for name, taken in named.items()]
        rest = total - self.steps - sum(named.values())
        spent = f"{total:.1f} s" if total < 100 else format_duration(total)
        return f"time {spent}: {', '.join([steps, *shares, f'other {max(rest, 0.0) / total:.0%}'])}"
