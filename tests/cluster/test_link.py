from __future__ import annotations

import socket
import threading
from types import SimpleNamespace

import pytest

from prototrain.cluster import link as links
from prototrain.cluster.hub import Limits
from prototrain.cluster.link import Link


def test_the_chief_is_not_silent_while_this_worker_itself_is_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    naps = iter([0.5, 0.5, 50.0, *[0.5] * 100])
    time = SimpleNamespace(now=0.0)
    made, ended = threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        assert seconds == links.BEAT_SECONDS and made.wait(20)
        if link.broken is None:
            time.now += next(naps)
        else:
            link._line = None
            ended.set()

    monkeypatch.setattr(links, "time", SimpleNamespace(monotonic=lambda: time.now, sleep=sleep))
    ours, theirs = socket.socketpair()
    with theirs, ours:
        link = Link(ours, 1, ["worker 0 (a:1, the chief)", "worker 1 (b:1)"], Limits(silence=10.0))
        made.set()
        assert ended.wait(20)
        assert link.broken is not None and "no sign of life for 10 seconds" in link.broken["why"]
        assert 58 < time.now < 62  # 10 seconds of listening, not the first look after the pause
        ours.shutdown(socket.SHUT_RDWR)
