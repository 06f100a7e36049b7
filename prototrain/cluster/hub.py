"""What the chief does for all workers: brings their words together, and finds out who is missing, silent or stuck.

A `Hub` knows nothing of sockets; `prototrain.cluster.meeting` connects it with the workers' links. Messages are dicts
that JSON can hold. From a worker come ``give`` (its part of an exchange), ``leave`` (it ends the run where the others
would exchange something), ``failed`` (it has broken down), ``beat`` (a sign of life, with where it is) and ``bye`` (its
program ends). To a worker go ``given`` (the parts of all), ``left``, ``failed`` and ``beats``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
GONE = "it is gone without a word: killed, or cut off"
ENDED = "its program has ended"
FRESH_SECONDS = 1.5  # for which what a worker has said of itself holds
SILENT_SECONDS = 3.0  # after which nothing being heard of a worker is worth a word
_HELD_UP_SECONDS = 2.0  # between looks that are made twice a second


@dataclass
class Limits:
    """How long to wait, in seconds.

    Attributes:
        silence: for a sign of life of a worker.
        stall: for a worker that lives and gets nowhere, while others wait for it.
    """

    silence: float = 300.0
    stall: float = 1800.0


class OwnPauses:
    """How long this very process was held up: stopped, frozen with its machine, or in a call that keeps Python's lock.

    Nothing was heard of others in that time because nobody listened, so it must not count as their silence.

    Args:
        now: the time, in seconds.
    """

    def __init__(self, now: float) -> None:
        self._looked = now

    def look(self, now: float) -> float:
        """Seconds for which it was held up since the last look; to be called about twice a second."""
        gap, self._looked = now - self._looked, now
        return max(0.0, gap - _HELD_UP_SECONDS)


class _Seat:
    """What is known of one worker."""

    def __init__(self, now: float) -> None:
        self.heard = self.moved = now
        self.beat: Message = {"place": "starting", "together": False, "begun": None, "reading": False}
        self.is_gone = self.has_ended = False


class Hub:
    """Decides for all workers; not safe for threads.

    Args:
        names: of the workers, for messages, in their order.
        send: takes the index of a worker and a message for it; one that is gone is left out. What goes to several is
            the same object, and stays as it is.
        limits: how long to wait; may be changed while it runs.
        clock: returns the time in seconds.

    Attributes:
        over: what has broken the connection between the workers, once that has happened.
    """

    def __init__(
        self,
        names: Sequence[str],
        send: Callable[[int, Message], None],
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.over: Message | None = None
        self._names = names
        self._send = send
        self._limits = limits
        self._clock = clock
        self._seats = [_Seat(clock()) for _ in names]
        self._pauses = OwnPauses(clock())
        self._given: dict[int, dict[int, Message]] = {}
        self._given_at: dict[tuple[int, int], float] = {}
        self._left: dict[int, Message] = {}
        self._done = -1
        self._gone: int | None = None  # the first worker that is

    def hear(self, index: int, message: Message) -> None:
        """Take a worker's message."""
        seat, kind = self._seats[index], message.get("kind")
        seat.heard = self._clock()
        if kind == "beat":
            if any(message[key] != seat.beat[key] for key in ("place", "begun")):
                seat.moved = seat.heard
            seat.beat = {**message, "reading": False}
        elif kind == "bye":
            seat.has_ended = True
        elif self.over is not None:
            self._send(index, self.over)
        elif kind == "failed":
            self._fail(index, str(message["why"]), message.get("signum"))
        elif kind == "give":
            seat.moved = seat.heard
            self._give(index, message)
        elif kind == "leave" and message["number"] > self._done:
            number = message["number"]
            self._left.setdefault(number, {**message, "kind": "left", "who": index})
            for other in {index, *self._given.pop(number, {})}:
                self._send(other, self._left[number])

    def lose(self, index: int) -> None:
        """The connection to a worker has ended."""
        seat = self._seats[index]
        seat.is_gone = True
        self._gone = index if self._gone is None else min(self._gone, index)
        if self.over is None and (self._given or not seat.has_ended):
            self._fail(index, ENDED if seat.has_ended else GONE)

    def tick(self) -> None:
        """Look who is silent or stuck, and tell everybody how everybody is; to be called about twice a second."""
        now = self._clock()
        self._leave_out(self._pauses.look(now), now)
        waiting = {index for given in self._given.values() for index in given}
        begun = [seat.beat["begun"] for seat in self._seats if seat.beat["begun"] is not None]
        for seat in self._seats:
            # Those that have their batch of a step are in it; who is behind them can only be waiting for its own.
            is_behind = seat.beat["begun"] is not None and seat.beat["begun"] < max(begun)
            seat.beat["reading"] = is_behind and now - seat.heard < FRESH_SECONDS
        states = {  # of those that others may wonder about: with many workers the rest would be most of what is sent
            str(index): {**seat.beat, "silent": now - seat.heard, "waits": index in waiting}
            for index, seat in enumerate(self._seats)
            if (waiting and index not in waiting) or seat.beat["reading"] or now - seat.heard > SILENT_SECONDS
        }
        beats = {"kind": "beats", "states": states}
        for index in range(len(self._seats)):
            self._send(index, beats)
        if self.over is None:
            self._judge(now, waiting)

    # -- the exchanges ------------------------------------------------------------------------------------------------

    def _give(self, index: int, message: Message) -> None:
        number = message["number"]
        if number in self._left:
            self._send(index, self._left[number])
            return
        if self._gone is not None:
            self._fail(self._gone, ENDED)
            return
        given = self._given.setdefault(number, {})
        given[index] = message
        self._given_at[number, index] = self._clock()
        if len(given) < len(self._names):
            return
        del self._given[number]
        self._given_at = {key: at for key, at in self._given_at.items() if key[0] != number}
        self._done = number
        subjects = [given[other]["subject"] for other in range(len(self._names))]
        different = next((other for other, subject in enumerate(subjects) if subject != subjects[0]), None)
        if different is not None:
            self._fail(different, f"it is at {subjects[different]}, and the chief is at {subjects[0]}")
            return
        parts = {"kind": "given", "number": number, "values": [given[i]["value"] for i in sorted(given)]}
        for other in given:
            self._send(other, parts)

    def _leave_out(self, pause: float, now: float) -> None:
        """Have all waiting be as long as if a pause of this process had not been."""
        for seat in self._seats:
            seat.heard, seat.moved = min(now, seat.heard + pause), min(now, seat.moved + pause)
        self._given_at = {key: min(now, at + pause) for key, at in self._given_at.items()}

    # -- who is to blame ----------------------------------------------------------------------------------------------

    def _fail(self, index: int, why: str, signum: int | None = None) -> None:
        self.over = {"kind": "failed", "who": index, "why": why, "signum": signum}
        for other, seat in enumerate(self._seats):
            if not seat.is_gone:
                self._send(other, self.over)

    def _judge(self, now: float, waiting: set[int]) -> None:
        silence, stall = self._limits.silence, self._limits.stall
        for index, seat in enumerate(self._seats):
            if now - seat.heard > silence:
                self._fail(index, no_sign_of_life(silence))
                return
        for number, given in self._given.items():
            for index, message in given.items():
                if message["ended"] is not None and now - self._given_at[number, index] > message["grace"]:
                    behind = [i for i, seat in enumerate(self._seats) if i not in given and seat.beat["together"]]
                    if behind:
                        self._fail(
                            index, f"it ran out of training data behind step {message['ended']}, and "
                            f"{self._names[behind[0]]} did not: all workers must read the same data"
                        )  # fmt: skip
                        return
        stuck = [
            (not seat.beat["reading"], index)
            for index, seat in enumerate(self._seats)
            if index not in waiting and now - seat.moved > stall and (waiting or seat.beat["together"])
        ]
        if stuck:
            index = min(stuck)[1]
            place = where(self._seats[index].beat)
            self._fail(index, f"it has been {place} for {stall:g} seconds (trainer.stall_timeout)")


def where(beat: Message) -> str:
    """Where a worker is, in words that go on from "it is"."""
    return f"waiting for its training data {beat['place']}" if beat["reading"] else str(beat["place"])


def no_sign_of_life(seconds: float) -> str:
    """What is said of a worker that was silent for too long."""
    return (
        f"it has given no sign of life for {seconds:g} seconds (trainer.cluster_timeout): its process is stopped, or "
        "its machine is gone"
    )
