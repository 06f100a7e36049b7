"""Find a batch size: double it and train some steps with each size, until the memory or the data is exhausted.

The suggestion is the smallest size that is about as fast as the fastest, because larger batches make fewer updates from
the same examples.
"""

from __future__ import annotations

import gc
import resource
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import psutil
import tensorflow as tf

from prototrain.actions.files import add_plot, write_plot
from prototrain.callbacks import CallbackFactory, LearningRate
from prototrain.data.batches import batch_size
from prototrain.errors import ConfigError, DataError
from prototrain.model import ModelProtocol
from prototrain.system.terminal import Table, print_tables, say
from prototrain.system.tracebacks import out_of_memory
from prototrain.trainers.tower import SimpleTrainer

ABOUT_AS_FAST: Final = 0.95
_TIMES: Final = 3
_MIB: Final = 2**20


class Measured(NamedTuple):
    """A batch size, its examples per second, and the peak memory so far of the GPU, or else of this process."""

    size: int
    speed: float
    memory: int  # bytes


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action's arguments to a parser."""
    parser.add_argument("--start", metavar="N", type=int, default=8, help="the smallest batch; default: %(default)s")
    parser.add_argument("--max", metavar="N", type=int, default=4096, help="the largest one; default: %(default)s")
    parser.add_argument("--steps", metavar="N", type=int, default=20, help="measured three times; default: %(default)s")
    add_plot(parser, "find_batch_size.png")


def run(model: ModelProtocol, args: Namespace) -> None:
    """Print and plot the examples per second for each batch size, on one device.

    Each size trains a new copy of the model with a learning rate of 0. The experiment is not changed.
    """
    parts = model.config["model.accumulate_steps"]
    start = -(-args.start // parts) * parts
    if not 0 < start <= args.max or args.steps < 1:
        raise ConfigError("find_batch_size: --start must be at least 1 and at most --max, and --steps at least 1")
    kept = model.config["model.batch_size"]
    try:
        found, end = measure(model, start, args.max, args.steps)
    finally:
        model.config["model.batch_size"] = kept
    if not found:
        raise ConfigError(f"find_batch_size: nothing to measure: {end}")
    columns = ["batch size", "steps/s", "examples/s", "peak memory in MiB"]
    rows = [(size, float(f"{speed / size:.4g}"), round(speed), round(memory / _MIB)) for size, speed, memory in found]
    print_tables(Table(rows, columns, number_format=","), end="\n\n")
    say(f"ended because {end}")
    best = suggest(found)
    say(f"try -s model.batch_size={best.size}, the smallest that is about as fast as any", end="\n\n")
    curve = [(one.size, one.speed) for one in found]
    write_plot(args.output, curve, (best.size, best.speed), f"{best.size}", axes=("batch size", "examples/s"))


def suggest(found: Sequence[Measured]) -> Measured:
    """Return the smallest batch size that is about as fast as the fastest."""
    fastest = max(one.speed for one in found)
    return next(one for one in found if one.speed >= ABOUT_AS_FAST * fastest)


def measure(model: ModelProtocol, start: int, largest: int, steps: int) -> tuple[list[Measured], str]:
    """Measure increasing batch sizes; returns the measurements and the reason for the end."""
    found: list[Measured] = []
    size = start
    while size <= largest:
        if (why := _too_large(found)) is not None:
            return found, why
        model.config["model.batch_size"] = size
        try:
            trainer = SimpleTrainer(model)
            trainer.continues_from_trained = True  # the weights do not matter here
            given = int(batch_size(trainer.data.first_batch))
            if given != size:
                return found, f"the data gave a batch of {given}, not {size}"
            if found:
                trainer.log = lambda text: None  # type: ignore[method-assign]  # log only the tables of the first run
            found.append(Measured(size, _speed(trainer, size, steps), _peak()))
        except Exception as error:
            if (asked := out_of_memory(error)) is not None:
                return found, f"batches of {size} are too large: {asked}"
            if not found or not isinstance(error, ConfigError | DataError):
                raise
            return found, f"batches of {size} cannot be made: {error}"
        del trainer
        gc.collect()
        size *= 2
    return found, f"batches of {size} are larger than --max {largest}"


def _speed(trainer: SimpleTrainer, size: int, steps: int) -> float:
    """Return the examples per second of the fastest of several measurements."""
    times: list[float] = []
    stopwatch = CallbackFactory(trigger=lambda callback: times.append(time.perf_counter())).every(steps=steps)
    trainer.train([LearningRate(lambda step: tf.zeros([])), stopwatch], max_steps=(_TIMES + 1) * steps)
    return size * steps / max(min(end - begin for begin, end in pairwise(times)), 1e-9)


def _too_large(found: Sequence[Measured]) -> str | None:
    """Return why the next size is too large, or None.

    Without a GPU the operating system kills a process that takes too much memory, so the size must be checked first.
    """
    if len(found) < 2 or tf.config.list_physical_devices("GPU"):
        return None
    wanted, free = 2 * (found[-1].memory - found[-2].memory), psutil.virtual_memory().available
    if wanted < free:
        return None
    return f"the next size would take some {wanted / _MIB:,.0f} MiB more, and {free / _MIB:,.0f} MiB are free"


def _peak() -> int:
    if tf.config.list_physical_devices("GPU"):
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
