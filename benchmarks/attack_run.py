"""One run of the storm on a machine that is not as it should be.

python -m benchmarks.attack_run SABOTAGE KIND DIRECTORY STEPS
"""

from __future__ import annotations

import errno
import fcntl
import random
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from prototrain.errors import PrototrainError

LARGEST_FILE: Final = 30_000  # bytes: metrics fit, the model's weights do not


def jumping_clock() -> None:
    """Have the time of day jump back and forth by up to a day."""
    real, draw = time.time, random.Random(1)
    time.time = lambda: real() + draw.uniform(-86400, 86400)


def no_locks() -> None:
    """Have every lock on a file refused, as on some network file systems."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    fcntl.flock = refuse  # type: ignore[assignment]
    fcntl.lockf = refuse


def small_files() -> None:
    """Have no file grow above a limit, as on a disk that is full or behind a quota."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))


def little_memory() -> None:
    """Have a step ask for more memory than any machine has; what a limit kills has no words, as with SIGKILL."""
    from benchmarks import storm_run

    build = storm_run.build

    def greedy(inputs: Any, train_phase: bool) -> Any:
        import tensorflow as tf

        net = build(inputs, train_phase)
        if tf.executing_eagerly():
            return net
        many = tf.shape(inputs["images"], out_type=tf.int64)[0] * tf.cast(inputs["labels"][0] >= 0, tf.int64) * 10**12
        net.loss += tf.reduce_sum(tf.random.stateless_uniform([many], [1, 2]))
        return net

    storm_run.build = greedy


SABOTAGES: Final[dict[str, Callable[[], None]]] = {
    "nothing": lambda: None,
    "jumping clock": jumping_clock,
    "no locks": no_locks,
    "full disk": small_files,
    "little memory": little_memory,
}


def main() -> None:
    """Spoil the machine, then do what `benchmarks.storm_run` does."""
    from benchmarks import storm_run  # before there are limits

    SABOTAGES[sys.argv.pop(1)]()
    try:
        storm_run.main()
    except PrototrainError as error:  # as the command line does
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
