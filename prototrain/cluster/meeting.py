"""How workers come together before TensorFlow connects them: at the chief's address, which all of them know.

TensorFlow's own way of connecting holds Python's lock until everybody is there, so that no signal is heard and nothing
can be said meanwhile. Therefore the chief first listens at its address itself, until all workers have called, and
closes that door again for TensorFlow to listen there. The connections stay, for a `Link` on each worker.

What is received is JSON of a bounded length, and none of it is run; before the meeting is complete, a caller has to
name the same cluster and a seat in it that is free.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from prototrain.cluster.hub import Hub, Limits, Message
from prototrain.cluster.link import BEAT_SECONDS, Link
from prototrain.errors import ClusterError
from prototrain.system.forks import tell_of_forks
from prototrain.system.waiting import PATIENCE_SECONDS

_LONGEST_MESSAGE = 2**24  # bytes: the description of a long pipeline over very many files
_HELLO_SECONDS = 5.0
_RETRY_SECONDS = 0.25
_LAST_SECONDS = 3.0
say = partial(print, flush=True)


class Meeting:
    """The chief's part: takes calls until all workers are there, and then passes on what they say.

    Args:
        addresses: ``host:port`` of all workers, the chief's first.
        names: of the workers, for messages, in their order.
        limits: how long to wait.

    Raises:
        ClusterError: it cannot listen at its address.
    """

    def __init__(self, addresses: list[str], names: list[str], limits: Limits) -> None:
        self._names = names
        self._limits = limits
        self._digest = digest(addresses)
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._sent: tuple[Message, bytes] = {}, b""
        self._hub: Hub | None = None
        self._is_complete, self._is_closed = threading.Event(), threading.Event()
        self._is_closing = self._is_forked = False
        self._sockets: list[socket.socket] = []
        self._door = _listen(addresses[0])
        self.line, self._own = socket.socketpair()
        self._loop = asyncio.new_event_loop()
        tell_of_forks(self)
        threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), name="hub", daemon=True).start()

    def after_fork(self) -> None:
        """Leave the connections to the parent: the others must see them end when the parent does."""
        self._is_forked = True
        for one in [self._door, self._own, *self._sockets]:
            if one.fileno() >= 0:
                os.close(one.fileno())  # they belong to the loop, which has no way to close them without its thread

    @property
    def missing(self) -> list[int]:
        """The workers that have not called yet."""
        return [index for index in range(1, len(self._names)) if index not in self._writers]

    def wait(self, seconds: float) -> bool:
        """Wait until all are there; returns whether they are."""
        return self._is_complete.wait(seconds)

    def give_up(self, why: str) -> None:
        """Tell those who are there that the others have not come."""
        done = threading.Event()

        def tell() -> None:
            for index in list(self._writers):
                self._send(index, {"kind": "failed", "who": 0, "why": why, "signum": None})
            self._door.close()
            done.set()

        self._loop.call_soon_threadsafe(tell)
        done.wait(PATIENCE_SECONDS)

    def end(self) -> None:
        """Let everybody read what was sent last: a connection that is closed before its time takes that away."""
        if not self._is_forked:
            self._loop.call_soon_threadsafe(self._close)
            self._is_closed.wait(_LAST_SECONDS)

    # -- in a thread of its own ---------------------------------------------------------------------------------------

    def _close(self) -> None:
        others = [writer for index, writer in self._writers.items() if index and not writer.is_closing()]
        for writer in others:
            with suppress(OSError):
                writer.write_eof()
        self._is_closing = True
        if not others:
            self._is_closed.set()

    async def _run(self) -> None:
        all_there = asyncio.Event()
        if not self.missing:
            all_there.set()

        async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            index = await self._greet(reader, writer)
            if index is None:
                writer.close()
                return
            self._writers[index] = writer
            self._sockets.append(writer.get_extra_info("socket"))
            if not self.missing:
                all_there.set()
            await self._listen_to(index, reader)

        server = await asyncio.start_server(called, sock=self._door, limit=_LONGEST_MESSAGE)
        while not all_there.is_set():
            for index in list(self._writers):
                self._send(index, {"kind": "missing", "workers": self.missing})
            with suppress(TimeoutError):
                await asyncio.wait_for(all_there.wait(), BEAT_SECONDS)
        server.close()
        self._hub = Hub(self._names, self._send, self._limits)
        reader, self._writers[0] = await asyncio.open_connection(sock=self._own, limit=_LONGEST_MESSAGE)
        own = asyncio.create_task(self._listen_to(0, reader))
        for index in range(1, len(self._names)):
            self._send(index, {"kind": "met"})
        for index in self.missing:  # died in the very moment
            self._hub.lose(index)
        self._is_complete.set()
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self._hub.tick()
            if own.done():
                own.result()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int | None:
        """Find out who is calling; None if it is nobody who belongs here."""
        try:
            hello = json.loads(await asyncio.wait_for(reader.readline(), _HELLO_SECONDS))
            index, theirs = int(hello["worker"]), hello["cluster"]
        except (TimeoutError, ValueError, KeyError, TypeError, OSError):
            return None
        wrong = None
        if theirs != self._digest:
            wrong = "it was started with another list of addresses than the chief"
        elif index in self._writers or not 0 < index < len(self._names):
            wrong = "there is a worker of its number already"
        if wrong is None:
            return index
        with suppress(OSError):
            writer.write(json.dumps({"kind": "refused", "why": wrong}).encode() + b"\n")
            await writer.drain()
        return None

    async def _listen_to(self, index: int, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError):  # whoever sends something else is lost as well
            while text := await reader.readline():
                if self._hub is not None:
                    self._hub.hear(index, json.loads(text))
        if self._hub is not None and not self._is_closing:
            self._hub.lose(index)
        self._writers.pop(index).close()
        if self._is_closing and not any(self._writers):
            self._is_closed.set()

    def _send(self, index: int, message: Message) -> None:
        writer = self._writers.get(index)
        if writer is not None and not writer.is_closing() and not self._is_closing:
            if message is not self._sent[0]:  # with many workers, to write it once for each would take seconds
                self._sent = message, json.dumps(message).encode() + b"\n"
            writer.write(self._sent[1])


def meet(
    addresses: list[str],
    index: int,
    limits: Limits,
    *,
    announce: Callable[[str], object] = say,
    clock: Callable[[], float] = time.monotonic,
) -> Link:
    """Wait until all workers are there.

    Args:
        addresses: ``host:port`` of all of them, the chief's first.
        index: this one's.
        limits: how long to wait; `silence` is the time for the others to come.
        announce: called with a line for the user.
        clock: returns the time in seconds.

    Raises:
        ClusterError: somebody does not come, or this worker is not wanted.
    """
    names = [f"worker {i} ({address}{', the chief' * (i == 0)})" for i, address in enumerate(addresses)]
    waiting = Waiting(limits.silence, announce, clock=clock)
    if index == 0:
        return _as_chief(addresses, names, limits, waiting)
    while True:
        line, why = _call(addresses, index, waiting, names)
        if line is not None:
            return Link(line, index, names, limits)
        waiting.say_missing([f"the chief at {addresses[0]}"], why)
        time.sleep(_RETRY_SECONDS)


def digest(addresses: list[str]) -> str:
    """What tells one cluster from another."""
    return hashlib.sha256(json.dumps(addresses).encode()).hexdigest()[:16]


class Waiting:
    """Says who is waited for, and ends that when it is too late.

    Args:
        seconds: to wait.
        announce: called with a line for the user.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        seconds: float,
        announce: Callable[[str], object] = say,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._announce, self._clock = seconds, announce, clock
        self._begin, self._said = clock(), ""

    def say_missing(self, missing: list[str], why: str = "", *, may_end: bool = True) -> None:
        """Wait for somebody; a line says so after two seconds, and whenever it becomes somebody else.

        Raises:
            ClusterError: it has taken too long.
        """
        whom = ", ".join(missing) + why
        elapsed = self._clock() - self._begin
        if may_end and elapsed > self._seconds:
            raise ClusterError(
                f"{whom} {'has' if len(missing) == 1 else 'have'} not come within {self._seconds:g} seconds "
                "(trainer.cluster_timeout); is every process started, and can all reach each other's ports?"
            )
        if elapsed > PATIENCE_SECONDS and whom != self._said:
            self._said = whom
            self._announce(f"waiting for {whom} to start ...")


def _as_chief(addresses: list[str], names: list[str], limits: Limits, waiting: Waiting) -> Link:
    meeting = Meeting(addresses, names, limits)
    try:
        while not meeting.wait(0.1):
            if meeting.missing:
                waiting.say_missing([names[index] for index in meeting.missing])
    except BaseException as error:
        meeting.give_up(str(error) or type(error).__name__)
        meeting.end()
        raise
    atexit.register(meeting.end)
    return Link(meeting.line, 0, names, limits)


def _call(addresses: list[str], index: int, waiting: Waiting, names: list[str]) -> tuple[socket.socket | None, str]:
    """Call the chief, and wait with it for the others.

    Returns:
        the connection once all are there; or None, and what is wrong.
    """
    try:
        line = socket.create_connection(_split(addresses[0]), timeout=1.0)
    except OSError as error:
        return None, f" ({error.strerror or error})"
    is_there = False
    try:
        line.sendall(json.dumps({"worker": index, "cluster": digest(addresses)}).encode() + b"\n")
        while (message := _read_line(line)) is not None:
            if message["kind"] == "met":
                line.settimeout(None)
                return line, ""
            if message["kind"] == "refused":
                raise ClusterError(f"the chief at {addresses[0]} has no place for worker {index}: {message['why']}")
            if message["kind"] == "failed":
                raise ClusterError(f"{names[0]} gives up: {message['why']}")
            is_there = True
            if message["workers"]:
                # The chief, who has begun at another time, says when it is too late.
                waiting.say_missing([names[index] for index in message["workers"]], may_end=False)
    except OSError:
        pass
    except (ValueError, KeyError, TypeError):
        line.close()
        return None, " (something else answers there: another program, or a run that is under way already)"
    except BaseException:
        line.close()
        raise
    line.close()
    return None, " (it was there and is gone)" if is_there else " (it does not answer)"


def _read_line(line: socket.socket) -> Message | None:
    """Read a message byte by byte, so that nothing of the next one is lost; None where the connection has ended."""
    text = b""
    while not text.endswith(b"\n"):
        byte = line.recv(1)
        if not byte:
            return None
        text += byte
        if len(text) > 65536:
            raise ValueError("no message of ours")
    found: Any = json.loads(text)
    return dict(found)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _listen(address: str) -> socket.socket:
    port = _split(address)[1]
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise ClusterError(
            f"cannot listen at {address}: {error.strerror}; is another run of this job there?"
        ) from error
