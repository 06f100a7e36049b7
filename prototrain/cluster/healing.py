"""Whether a group of workers that has ended is started again, and when."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from prototrain.cluster.host import State

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)  # of code, not of a machine


@dataclass(frozen=True)
class Verdict:
    """What is to be done.

    Attributes:
        is_over: whether the run ends.
        cause: what has become of the group, in words.
        advice: why nothing is tried again, if that is so.
        worker: the number of the one to blame.
    """

    is_over: bool
    cause: str
    advice: str = ""
    worker: int = 0


class Healing:
    """Judges ends, and remembers them.

    Args:
        max_restarts: how often a group may be started again.

    Attributes:
        restarts: how often it was so far.
        max_restarts: how often at most.
        has_begun: whether a group has come to its first step.
        step: the furthest that a group has come.
    """

    def __init__(self, max_restarts: int) -> None:
        self.restarts = 0
        self.has_begun = False
        self.step = -1
        self.max_restarts = max_restarts
        self._in_vain = 0
        self._faults: set[tuple[str, int | None]] = set()

    def judge(self, names: Sequence[str], states: Sequence[State], killed: dict[int, str]) -> Verdict:
        """Find out what a group has ended by.

        Args:
            names: of the workers, for messages.
            states: of the workers, which have all ended, not all by themselves with exit code 0.
            killed: why the supervisor itself has killed some of them, by number.
        """
        steps = [state.step for state in states if state.step is not None]
        furthest = max(steps, default=-1)
        self.has_begun = self.has_begun or bool(steps)
        self._in_vain = 0 if furthest > self.step else self._in_vain + 1
        self.step = max(self.step, furthest)
        rank, worker = min((_rank(state, index in killed), index) for index, state in enumerate(states))
        state = states[worker]
        cause = f"{names[worker]} {killed.get(worker) or describe(state)}"
        fault = _fault(state) if rank == 0 else None
        if state.failure is not None and rank == 0:
            if state.failure["is_lasting"]:
                return Verdict(True, cause, worker=worker)
            if not self.has_begun:
                return Verdict(True, cause, "before its first step", worker)
        if fault is not None and fault in self._faults:
            return Verdict(True, cause, "for the second time at the same step", worker)
        if fault is not None:
            self._faults.add(fault)
        if self.restarts >= self.max_restarts:
            return Verdict(True, cause, f"after {self.restarts} restarts" if self.restarts else "", worker)
        self.restarts += 1
        return Verdict(False, cause, worker=worker)

    @property
    def pause(self) -> float:
        """Seconds to wait before the next start: longer each time that the run came no further than before."""
        return float(min(_FIRST_PAUSE * 2**self._in_vain, _LONGEST_PAUSE))


def describe(state: State) -> str:
    """How a worker has ended, in words that go on from its name."""
    at = "" if state.step is None else f" at step {state.step}"
    before = "" if state.step is None else f", heard of last at step {state.step}"
    if state.is_lost:
        return f"is lost with its machine{before}"
    if state.failure is not None:
        return f"failed{at}: {state.failure['text']}"
    code = state.code or 0
    if code < 0:
        return f"was killed by {_name(-code)}{before}"
    if code > 128:
        return f"was stopped by {_name(code - 128)}{at}"
    return f"ended with exit code {code}{at}"


def _name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def _rank(state: State, is_killed: bool) -> int:
    """How likely the other workers have ended because of this one; the smaller, the likelier."""
    if state.failure is not None and not state.failure["is_of_another"]:
        return 0
    if is_killed:
        return 2
    if state.failure is not None:
        return 5
    if state.is_lost:
        return 1
    code = state.code or 0
    if code < 0:
        return 0 if -code in _CRASHES else 1
    return 6 if code == 0 else 4 if code in (129, 130, 143, 152) else 3


def _fault(state: State) -> tuple[str, int | None] | None:
    if state.failure is not None:
        return state.failure["kind"], state.step
    return describe(state), state.step
