"""Where the time of a run goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import islice

NAMED_SHARE = 0.01
NAMED_CALLBACKS = 3  # at most, so that it stays a line of a terminal; run.json has all of them
INPUT_SHARE = 0.25
ADVICE = (
    "the steps spent {share:.0%} of their time waiting for input: read several files in turns (interleave), map with "
    "num_parallel_calls=tf.data.AUTOTUNE, cache() what does not change, and end with prefetch(tf.data.AUTOTUNE)"
)


class RunTimes:
    """The seconds that a run spends on this and that.

    Args:
        clock: returns the time in seconds.

    Attributes:
        steps: in `run_steps`, without tracing.
        tracing: in the first compiled call, most of which is tracing.
        input: waiting for a batch, which is a part of `steps`.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.start()

    def start(self) -> None:
        """A run begins."""
        self.began = self.clock()
        self.steps = self.tracing = self.input = 0.0

    def add_call(self, *, tracing: float, waiting: float) -> None:
        """A compiled call ends; what it spent on tracing is no time of the steps that it was called for."""
        self.tracing += tracing
        self.steps -= tracing
        self.input += waiting

    def loop(self) -> dict[str, float]:
        """The parts by name."""
        return {"steps": self.steps, "waiting for input": self.input, "tracing": self.tracing}

    def report(self, callbacks: Mapping[str, float]) -> str:
        """One line of shares, and one of advice if there is something to be gained.

        Args:
            callbacks: the seconds that each callback took, by name, the longest first.
        """
        total = max(self.clock() - self.began, 1e-9)
        steps = f"steps {self.steps / total:.0%}"
        if self.input > NAMED_SHARE * total:
            steps += f" (waiting for input {self.input / total:.0%})"
        others = {"tracing": self.tracing, **dict(islice(callbacks.items(), NAMED_CALLBACKS))}
        named = {name: taken for name, taken in others.items() if taken > NAMED_SHARE * total}
        shares = [f"{name} {taken / total:.0%}" for name, taken in named.items()]
        rest = total - self.steps - sum(named.values())
        text = f"where {total:.1f} s went: {', '.join([steps, *shares, f'the rest {max(rest, 0.0) / total:.0%}'])}"
        if self.input > INPUT_SHARE * self.steps and self.input > NAMED_SHARE * total:
            text += "\n" + ADVICE.format(share=self.input / self.steps)
        return text
