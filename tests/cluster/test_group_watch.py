"""Workers that do not end when another one has: who is killed, and after how long."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from prototrain.cluster import group_watch
from prototrain.cluster.group_watch import END_SECONDS, GroupWatch
from prototrain.cluster.host import State
from prototrain.cluster.hub import Limits

STALL = 300.0


class Seat:
    """A worker's, of which is told what becomes of it until it is killed."""

    def __init__(self, state: State) -> None:
        self.state = state

    def poll(self) -> State:
        return self.state

    def signal(self, signum: int) -> None:
        assert signum == signal.SIGKILL
        self.state = State(code=-signum)


class Signals:
    taken = ()


@pytest.mark.parametrize(
    ("one", "other", "after", "why"),
    [
        (State(code=1), State(has_spoken=True), END_SECONDS, "after another worker failed, ahead of its first step"),
        (State(code=1), State(has_spoken=True, step=3), STALL, "after another worker"),
        (State(code=0), State(has_spoken=True), STALL, "after another worker"),
    ],
    ids=["it waits for one that failed", "it makes steps", "it has more to do"],
)
def test_who_is_late(one: State, other: State, after: float, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(group_watch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(group_watch.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + 1))
    seats: list[Any] = [Seat(other), Seat(one)]
    watch = GroupWatch(seats, None, Signals(), Limits(silence=1000, stall=STALL))  # type: ignore[arg-type]
    watch._looked = float("inf")
    watch.until_the_end()
    assert watch.killed == {0: f"did not end within {after:g} seconds {why}"}
    assert after < now[0] - 1000 < after + 4
