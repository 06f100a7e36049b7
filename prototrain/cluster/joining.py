"""How a worker comes to the meeting at the chief's address, and the chief itself; see `prototrain.cluster.meeting`."""

from __future__ import annotations

import atexit
import json
import socket
import time
from collections.abc import Callable
from typing import Any

from prototrain.cluster.addresses import host_and_port
from prototrain.cluster.hub import Limits, Message
from prototrain.cluster.link import Link
from prototrain.cluster.meeting import Meeting, digest
from prototrain.cluster.waiting import Waiting, say
from prototrain.errors import ClusterError

_RETRY_SECONDS = 0.25


def meet(
    addresses: list[str],
    index: int,
    limits: Limits,
    *,
    announce: Callable[[str], object] = say,
) -> Link:
    """Wait until all workers are there.

    Args:
        addresses: ``host:port`` of all of them, the chief's first.
        index: this one's.
        limits: how long to wait; `silence` is the time for the others to come.
        announce: called with a line for the user.

    Raises:
        ClusterError: somebody does not come, or this worker is not wanted.
    """
    names = [f"worker {i} ({address}{', the chief' * (i == 0)})" for i, address in enumerate(addresses)]
    waiting = Waiting(limits.silence, announce)
    if index == 0:
        return _as_chief(addresses, names, limits, waiting)
    while True:
        line, why = _call(addresses, index, waiting, names)
        if line is not None:
            return Link(line, index, names, limits)
        waiting.say_missing([f"the chief at {addresses[0]}"], why)
        time.sleep(_RETRY_SECONDS)


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
        line = socket.create_connection(host_and_port(addresses[0]), timeout=1.0)
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
