"""The chief's part of how workers come together before TensorFlow connects them: at its address, which all know.

TensorFlow's own way of connecting holds Python's lock until everybody is there, so that no signal is heard and nothing
can be said meanwhile. Therefore the chief first listens at its address itself, until all workers have called, and
closes that door again for TensorFlow to listen there. The connections stay, for a `Link` on each worker.

What is received is JSON of a bounded length, and none of it is run; before the meeting is complete, a caller has to
name the same cluster and a seat in it that is free.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import threading
from contextlib import suppress

from prototrain.cluster.addresses import listen
from prototrain.cluster.hub import Hub, Limits, Message
from prototrain.cluster.link import BEAT_SECONDS
from prototrain.system.forks import tell_of_forks
from prototrain.system.waiting import PATIENCE_SECONDS

_LONGEST_MESSAGE = 2**24  # bytes: the description of a long pipeline over very many files
_HELLO_SECONDS = 5.0
_LAST_SECONDS = 3.0


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
        self._door = listen(addresses[0])
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


def digest(addresses: list[str]) -> str:
    """What tells one cluster from another."""
    return hashlib.sha256(json.dumps(addresses).encode()).hexdigest()[:16]
