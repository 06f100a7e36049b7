"""One group of workers, from its start until all of them have ended."""

from __future__ import annotations

import codecs
import json
import math
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from prototrain.cluster.host import Output, State
from prototrain.cluster.places import Lost, Places, Seat
from prototrain.cluster.supervision import Group
from prototrain.experiment.experiment import STARTED
from prototrain.system.signals import StopRequest
from prototrain.system.terminal import say

TICK_SECONDS = 0.1
START_SECONDS = 300.0  # for the first sign of life of a worker, behind the import of TensorFlow
END_SECONDS = 15.0  # in which the other workers end once the chief has
_ENOUGH = 3  # signals, after which nobody wants to wait for anything
_LOOK_SECONDS = 5.0  # between looks for room


@dataclass(frozen=True)
class Limits:
    """How long to wait, in seconds.

    Attributes:
        silence: for a sign of life of a worker.
        stall: for the chief to end when another worker has.
    """

    silence: float = 300.0
    stall: float = 1800.0

    @classmethod
    def of(cls, stall_timeout: float | None) -> Limits:
        """Those that go with the time after which a worker counts as stuck."""
        # A large checkpoint may take minutes to be saved.
        silence, stall = (300.0, 1800.0) if stall_timeout is None else (stall_timeout, stall_timeout)
        return cls(min(max(silence, 15.0), 300.0), max(stall, 300.0))


class PassedOn(StopRequest):
    """Keeps the signals that this process gets for the workers, who answer them."""

    def __init__(self) -> None:
        super().__init__(say)
        self.taken: deque[int] = deque()

    def _on_signal(self, signum: int) -> None:
        self.taken.append(signum)
        if signum != signal.SIGUSR1:
            self.request(signum)


class GroupWatch:
    """Starts workers, shows what the chief prints, passes signals on, and kills who does not end.

    Args:
        seats: of the workers, the chief's first.
        places: that they are of.
        signals: for the workers.
        limits: how long to wait.

    Attributes:
        names: of the workers, for messages.
        states: what has become of them.
        killed: of those that were killed here by number, why, in words that go on from their names.
        is_for_more: whether the group was ended because there is room for a larger one.
    """

    def __init__(self, seats: Sequence[Seat], places: Places, signals: PassedOn, limits: Limits) -> None:
        self.names = [f"worker {index}" for index, _ in enumerate(seats)]
        self.states = [State() for _ in seats]
        self.killed: dict[int, str] = {}
        self.is_for_more = False
        self._seats, self._places, self._signals, self._limits = seats, places, signals, limits
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ended: dict[int, float] = {}
        self._stops = 0
        self._looked = time.monotonic()

    def __enter__(self) -> GroupWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for seat in self._seats:
            seat.end()

    def start(self, order: Mapping[str, Any], group: Group, started: str) -> None:
        """Start all workers.

        Args:
            order: what they are to do.
            group: what they are told of the group.
            started: when the run was, for the name of its directory.
        """
        chiefs: Output = "own"
        if self._places.passes_output:
            chiefs = "terminal" if sys.stderr.isatty() else "lines"
        size = _terminal_size() if chiefs == "terminal" else None
        try:
            addresses = [seat.address() for seat in self._seats]
            self.names = [f"worker {i} ({address}{', the chief' * (i == 0)})" for i, address in enumerate(addresses)]
            for index, seat in enumerate(self._seats):
                task = {"type": "worker", "index": index}
                environment = {
                    "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task}),
                    STARTED: started,
                    "PYTHONUNBUFFERED": "1",  # what the chief prints is to be seen when it is printed
                }
                seat.start({**order, "group": asdict(group)}, environment, "kept" if index else chiefs, size)
        except Lost:
            # Whoever has been started already ends with its seat.
            self.states = [State(is_lost=True) for _ in self._seats]

    def until_the_end(self) -> None:
        """Watch the workers until all have ended."""
        while not all(state.has_ended for state in self.states):
            self._pass_signals()
            self.states = [seat.poll() for seat in self._seats]
            if self.states[0].output:
                sys.stdout.write(self._decoder.decode(self.states[0].output))
                sys.stdout.flush()
            now = time.monotonic()
            for index, state in enumerate(self.states):
                if state.has_ended:
                    self._ended.setdefault(index, now)
            self._kill_who_is_late(now)
            self._look_for_room(now)
            time.sleep(TICK_SECONDS)

    def _pass_signals(self) -> None:
        while self._signals.taken:
            signum = self._signals.taken.popleft()
            if signum == signal.SIGUSR1:
                self._seats[0].signal(signum)
                continue
            self._stops += signum in (signal.SIGINT, signal.SIGTERM)
            for seat in self._seats:
                seat.signal(signal.SIGKILL if self._stops >= _ENOUGH else signum)

    def _kill_who_is_late(self, now: float) -> None:
        chief_ended, any_ended = self._ended.get(0), min(self._ended.values(), default=math.inf)
        has_failed = any(state.has_ended and state.code != 0 for state in self.states)
        for index, state in enumerate(self.states):
            if state.has_ended or index in self.killed:
                continue
            silence = self._limits.silence if state.has_spoken else max(self._limits.silence, START_SECONDS)
            if state.silent > silence:
                why = f"has given no sign of life for {silence:g} seconds"
            elif chief_ended is not None and now - chief_ended > END_SECONDS:
                why = f"did not end within {END_SECONDS:g} seconds after the chief"
            elif has_failed and state.step is None and now - any_ended > END_SECONDS:
                # It may be waiting for the other one in code of TensorFlow's, which hears of nothing.
                why = f"did not end within {END_SECONDS:g} seconds after another worker failed, ahead of its first step"
            elif now - any_ended > self._limits.stall:
                why = f"did not end within {self._limits.stall:g} seconds after another worker"
            else:
                continue
            self.killed[index] = why
            self._seats[index].signal(signal.SIGKILL)

    def _look_for_room(self, now: float) -> None:
        """Have the group end for a larger one, if that is possible by now."""
        if now - self._looked < _LOOK_SECONDS or self._ended or self.is_for_more:
            return
        self._looked = now
        if self.states[0].step is not None and self._places.has_more_room():
            self.is_for_more = True
            for seat in self._seats:
                seat.signal(signal.SIGTERM)


def _terminal_size() -> tuple[int, int] | None:
    import termios

    try:
        rows, columns = termios.tcgetwinsize(sys.stderr.fileno())
    except OSError:
        return None
    return rows, columns
