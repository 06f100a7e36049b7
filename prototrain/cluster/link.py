"""A worker's line to the others: exchanges with all of them, signs of life, and the word of one that has failed.

It is a connection of its own beside TensorFlow's, since a collective operation of TensorFlow knows neither whom it
waits for nor why, hears no signal and has no end.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from prototrain.cluster.hub import GONE, SILENT_SECONDS, Limits, Message, OwnPauses, no_sign_of_life, where
from prototrain.errors import ClusterError
from prototrain.system.forks import tell_of_forks
from prototrain.system.waiting import PATIENCE_SECONDS

BEAT_SECONDS = 0.5
_SLICE = 0.1  # seconds after which a waiting main thread hears of a signal


class Left(Exception):
    """Another worker has ended the run where this one wanted to exchange something.

    Attributes:
        who: its index.
        why: the error that made it leave, in its own words, or None.
        reason: why it has ended the run without an error.
        signum: the signal that made it leave, or None.
    """

    def __init__(self, message: Message) -> None:
        super().__init__(message.get("why") or message.get("reason"))
        self.who = int(message["who"])
        self.why: str | None = message.get("why")
        self.reason: str = message.get("reason") or ""
        self.signum: int | None = message.get("signum")


class Link:
    """The line of one worker; see the module.

    Args:
        line: connected with the hub.
        index: this worker's.
        names: of all workers, for messages, in their order.
        limits: how long to wait.

    Attributes:
        limits: as they were given; they may be changed, on all workers.
        announce: called with a line for the user.
        on_break: called once, from a thread, when a worker has broken down.
        watch: called twice a second, from a thread.
        begun: returns how many steps this worker has its batches of, if it is in a step.
        broken: what a worker that has broken down has said of it, or None.
        is_noticed: whether the main thread knows that.
    """

    def __init__(self, line: socket.socket, index: int, names: list[str], limits: Limits) -> None:
        self.limits = limits
        self.announce: Callable[[str], object] = print
        self.on_break: Callable[[str], object] = lambda why: None
        self.watch: Callable[[], object] = lambda: None
        self.begun: Callable[[], int | None] = lambda: None
        self.broken: Message | None = None
        self.is_noticed = False
        self.names = names
        self._line: socket.socket | None = line
        self._index = index
        self._number = 0
        self._changed = threading.Condition()
        self._answer: Message | None = None
        self._states: dict[int, Message] = {}  # of the others, as far as there is something about them
        self._heard = time.monotonic()
        self._place, self._together = "starting", False
        self._longest_wait = 0.0
        self._sending = threading.Lock()
        tell_of_forks(self)
        threading.Thread(target=self._receive, args=(line,), name="cluster", daemon=True).start()
        threading.Thread(target=self._beat, args=(line,), name="cluster beat", daemon=True).start()

    def after_fork(self) -> None:
        """Leave the line to the parent: the others must see it end when the parent does."""
        line, self._line = self._line, None
        if line is not None:
            os.close(line.detach())  # `close` would leave it open for the thread that reads, which is not here

    # -- with the others ----------------------------------------------------------------------------------------------

    def exchange(
        self,
        subject: str,
        value: Any,
        *,
        ended: int | None = None,
        grace: float = 0.0,
        wanted: Callable[[], int | None] = lambda: None,
    ) -> list[Any]:
        """Give something, as JSON can hold it; get what all workers have given, in their order.

        Args:
            subject: what it is about; the same for all.
            value: this worker's part.
            ended: the step behind which this worker's data has ended, if it has.
            grace: seconds after which the others' must have ended as well.
            wanted: returns the signal that wants this worker to leave, if there is one.

        Raises:
            Left: a worker ends the run here, perhaps this one.
            ClusterError: a worker has broken down, or does not come.
        """
        self._number += 1
        message = {"kind": "give", "number": self._number, "subject": subject, "value": value}
        return list(self._ask({**message, "ended": ended, "grace": grace}, wanted))

    def leave(self, *, why: str | None = None, reason: str = "", signum: int | None = None) -> None:
        """End the run where the others wait for this worker's part of the next exchange.

        Args:
            why: the error, if it is one.
            reason: why else.
            signum: the signal, if it is one.
        """
        self._number += 1
        with suppress(Left, ClusterError):
            self._ask(self._leaving(why=why, reason=reason, signum=signum), lambda: None)

    def fail(self, why: str, *, signum: int | None = None) -> None:
        """Tell the others that this worker has broken down, at whatever they are; nothing can be exchanged any more."""
        self.is_noticed = True
        if self.broken is None:
            self._send({"kind": "failed", "why": why, "signum": signum})

    @property
    def is_to_blame(self) -> bool:
        """Whether it is this worker that has broken down, as the others find."""
        return self.broken is not None and self.broken["who"] == self._index

    def error(self) -> ClusterError:
        """What has become of the worker that has broken down; for the main thread, which knows of it from now on."""
        self.is_noticed = True
        return ClusterError(self.verdict)

    @property
    def verdict(self) -> str:
        """The same in one line."""
        told = self.broken or {"who": 0, "why": GONE, "signum": None}
        return f"{self.names[told['who']]} failed: {told['why']}"

    def hear(self, seconds: float) -> bool:
        """Wait for the word of a worker that has broken down; returns whether there is one."""
        with self._changed:
            return self._changed.wait_for(lambda: self.broken is not None, seconds)

    def say_goodbye(self) -> None:
        """This worker's program ends, after which nobody should wait for it."""
        self._send({"kind": "bye"})

    def be(self, place: str, *, together: bool = False) -> None:
        """Say where this worker is from now on.

        Args:
            place: in words that go on from "it is", such as "in step 7".
            together: whether the others cannot go on there without it, nor it without them.
        """
        self._place, self._together = place, together

    def whom_it_waits_for(self) -> str | None:
        """The workers that keep the others waiting, in words, as far as that is known."""
        if self._hub_is_silent:
            return f"{self.names[0]}, of which nothing has been heard for {time.monotonic() - self._heard:.0f} seconds"
        states = list(self._states.items())
        late = [(i, state) for i, state in states if i != self._index and not state["waits"]]
        silent = [(i, state) for i, state in late if state["silent"] > SILENT_SECONDS]
        reading = [(i, state) for i, state in states if state["reading"]]
        found = silent or reading or ([] if self._together else late)
        return ", ".join(f"{self.names[i]}, {_state(state)}" for i, state in found) or None

    @property
    def somebody_is_silent(self) -> bool:
        """Whether nothing has been heard of another worker for some seconds."""
        states = list(self._states.items())
        return self._hub_is_silent or any(s["silent"] > SILENT_SECONDS for i, s in states if i != self._index)

    @property
    def _hub_is_silent(self) -> bool:
        return time.monotonic() - self._heard > SILENT_SECONDS

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _leaving(self, **about: Any) -> Message:
        return {"kind": "leave", "number": self._number, **about}

    def _ask(self, message: Message, wanted: Callable[[], int | None]) -> Any:
        begin, leaves_at, is_quiet = time.monotonic(), None, True
        self._answer = None
        self._send(message)
        while True:
            with self._changed:
                if self._answer is None and self.broken is None:
                    self._changed.wait(_SLICE)
                answer = self._answer
            if answer is not None and answer["number"] == self._number:
                self._longest_wait = max(self._longest_wait, time.monotonic() - begin)
                if answer["kind"] == "left":
                    raise Left(answer)
                return answer["values"]
            if self.broken is not None:
                raise self.error()
            now, signum = time.monotonic(), wanted()
            if is_quiet and now - begin > max(PATIENCE_SECONDS, 2 * self._longest_wait):
                is_quiet = False
                self.announce(f"waiting for {self.whom_it_waits_for() or 'the other workers'}")
            if signum is not None and leaves_at is None:
                leaves_at = now + 1.0
            if leaves_at is not None and now > leaves_at and message["kind"] == "give":
                # The others come to this very exchange before they go on, so that all end at the same step.
                message = self._leaving(signum=signum)
                self._send(message)

    def _send(self, message: Message) -> None:
        if self._line is not None:
            with self._sending, suppress(OSError):  # what has ended is noticed where it is read
                self._line.sendall(json.dumps(message).encode() + b"\n")

    # -- in threads of their own --------------------------------------------------------------------------------------

    def _receive(self, line: socket.socket) -> None:
        with suppress(OSError, ValueError), line.makefile("rb") as lines:
            for text in lines:
                self._take(json.loads(text))
        if self._line is not None:
            self._break({"who": 0, "why": GONE, "signum": None})
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)  # for which the chief waits at its end

    def _take(self, message: Message) -> None:
        self._heard = time.monotonic()
        if message["kind"] == "beats":
            self._states = {int(index): state for index, state in message["states"].items()}
        elif message["kind"] == "failed":
            self._break(message)
        elif message["kind"] in ("given", "left"):
            with self._changed:
                self._answer = message
                self._changed.notify_all()

    def _break(self, told: Message) -> None:
        with self._changed:
            if self.broken is not None:
                return
            self.broken = told
            self._changed.notify_all()
        self.on_break(self.verdict)

    def _beat(self, line: socket.socket) -> None:
        pauses = OwnPauses(time.monotonic())
        while self._line is line:
            self._leave_out(pauses)
            self.watch()
            if self.broken is None:
                self._send({"kind": "beat", "place": self._place, "together": self._together, "begun": self.begun()})
            if self.broken is None and time.monotonic() - self._heard > self.limits.silence:
                self._break({"who": 0, "why": no_sign_of_life(self.limits.silence), "signum": None})
            time.sleep(BEAT_SECONDS)

    def _leave_out(self, pauses: OwnPauses) -> None:
        now = time.monotonic()
        self._heard = min(now, self._heard + pauses.look(now))


def _state(state: Message) -> str:
    if state["silent"] > SILENT_SECONDS:
        return f"of which nothing has been heard for {state['silent']:.0f} seconds"
    return f"which is {where(state)}"
