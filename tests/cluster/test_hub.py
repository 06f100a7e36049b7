from __future__ import annotations

from typing import Any

import pytest

from prototrain.cluster.hub import Hub, Limits

NAMES = ["worker 0 (a:1, the chief)", "worker 1 (b:1)", "worker 2 (c:1)"]


class Room:
    """A hub, its time, and what it has sent to whom."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: dict[int, list[dict[str, Any]]] = {index: [] for index in range(3)}
        send = lambda index, message: self.sent[index].append(message)  # noqa: E731
        self.hub = Hub(NAMES, send, Limits(silence=10.0, stall=100.0), clock=lambda: self.now)

    def give(self, index: int, number: int = 1, value: Any = None, subject: str = "a step", **more: Any) -> None:
        about = {"ended": None, "grace": 0.0, **more}
        self.hub.hear(index, {"kind": "give", "number": number, "subject": subject, "value": value, **about})

    def beat(self, index: int, place: str = "in step 5", begun: int | None = 5, together: bool = True) -> None:
        self.hub.hear(index, {"kind": "beat", "place": place, "together": together, "begun": begun})

    def wait(self, seconds: float, **beats: dict[str, Any]) -> None:
        """Let time go by in which workers live; beats by "w0", "w1", "w2"."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1
            for name, about in beats.items():
                self.beat(int(name[1:]), **about)
            self.hub.tick()

    def last(self, index: int) -> dict[str, Any] | None:
        kept = [message for message in self.sent[index] if message["kind"] != "beats"]
        return kept[-1] if kept else None


@pytest.fixture
def room() -> Room:
    return Room()


def test_an_exchange_ends_when_all_have_given(room: Room) -> None:
    room.give(2, value="c")
    room.give(0, value="a")
    assert room.last(0) is None
    room.give(1, value="b")
    for index in range(3):
        assert room.last(index) == {"kind": "given", "number": 1, "values": ["a", "b", "c"]}


def test_who_leaves_meets_everybody_at_the_same_exchange(room: Room) -> None:
    room.give(0)
    room.hub.hear(1, {"kind": "leave", "number": 1, "why": "ValueError: no", "reason": "", "signum": None})
    assert room.last(2) is None  # busy still, and told when it comes
    room.give(2)
    for index in range(3):
        told = room.last(index)
        assert told is not None and (told["kind"], told["who"], told["why"]) == ("left", 1, "ValueError: no")
    assert room.hub.over is None


def test_leaving_too_late_changes_nothing(room: Room) -> None:
    for index in range(3):
        room.give(index)
    room.hub.hear(1, {"kind": "leave", "number": 1, "signum": 15})
    assert all(room.last(index)["kind"] == "given" for index in range(3))  # type: ignore[index]


@pytest.mark.parametrize(("ended", "why"), [(False, "gone without a word"), (True, "its program has ended")])
def test_a_connection_that_ends(ended: bool, why: str, room: Room) -> None:
    if ended:
        room.hub.hear(2, {"kind": "bye"})
    room.hub.lose(2)
    assert (room.hub.over is None) == ended  # a program may end, as long as nobody waits for it
    room.give(0)
    told = room.last(0)
    assert told is not None and told["kind"] == "failed" and told["who"] == 2 and why in told["why"]


def test_workers_at_different_exchanges(room: Room) -> None:
    room.give(0)
    room.give(1)
    room.give(2, subject="the end of the training")
    told = room.last(1)
    assert told is not None and told["who"] == 2
    assert told["why"] == "it is at the end of the training, and the chief is at a step"


def test_silence(room: Room) -> None:
    room.wait(9, w0={}, w1={})
    assert room.hub.over is None
    assert room.sent[0][-1]["states"]["2"]["silent"] == 9
    room.wait(2, w0={}, w1={})
    assert room.hub.over is not None and room.hub.over["who"] == 2
    assert "no sign of life for 10 seconds (trainer.cluster_timeout)" in room.hub.over["why"]


def test_nobody_is_silent_while_the_hub_itself_is_held_up(room: Room) -> None:
    busy = {"place": "busy behind step 5", "begun": None, "together": False}
    room.give(0, ended=5, grace=5.0)
    room.wait(2, w0=busy, w1=busy, w2=busy)
    room.now += 150  # its process is stopped, or keeps Python's lock; what the others have said waits in the socket
    room.hub.tick()
    assert room.hub.over is None
    room.wait(6, w0=busy, w1=busy, w2=busy)
    assert room.hub.over is None
    room.wait(9, w0=busy, w1=busy)
    assert room.hub.over is None
    room.wait(2, w0=busy, w1=busy)
    assert room.hub.over is not None and room.hub.over["who"] == 2


def test_a_hub_that_is_always_slow_finds_who_is_silent(room: Room) -> None:
    for _ in range(10):
        room.now += 3
        room.beat(0)
        room.beat(1)
        room.hub.tick()
    assert room.hub.over is not None and room.hub.over["who"] == 2


def test_a_step_that_does_not_end_is_put_down_to_who_waits_for_data(room: Room) -> None:
    room.wait(102, w0={"begun": 5}, w1={"begun": 4}, w2={"begun": 5})
    assert room.hub.over is not None and room.hub.over["who"] == 1
    why = "it has been waiting for its training data in step 5 for 100 seconds (trainer.stall_timeout)"
    assert room.hub.over["why"] == why


def test_a_callback_that_does_not_end(room: Room) -> None:
    busy = {"place": "busy behind step 5", "begun": None, "together": False}
    room.wait(150, w0=busy, w1=busy, w2=busy)
    assert room.hub.over is None  # nobody waits for anybody
    room.give(0)
    room.give(2)
    room.wait(2, w0=busy, w1=busy, w2=busy)
    assert room.hub.over is not None and room.hub.over["who"] == 1
    assert "busy behind step 5 for 100 seconds" in room.hub.over["why"]


def test_steps_that_go_on_are_not_stuck(room: Room) -> None:
    for begun in range(5):
        room.wait(60, w0={"begun": begun}, w1={"begun": begun}, w2={"begun": begun})
    assert room.hub.over is None


@pytest.mark.parametrize("everywhere", [True, False])
def test_data_that_ends_on_some_workers_only(everywhere: bool, room: Room) -> None:
    room.give(1, ended=92, grace=5.0)
    room.give(2, **({"ended": 92, "grace": 5.0} if everywhere else {}))
    if everywhere:
        room.give(0, ended=92, grace=5.0)
    stuck = {"place": "in step 93", "begun": 93}
    room.wait(8, w0=stuck, w1={}, w2={})
    if everywhere:
        assert room.hub.over is None
        return
    assert room.hub.over is not None and room.hub.over["who"] == 1
    assert room.hub.over["why"] == (
        "it ran out of training data behind step 92, and worker 0 (a:1, the chief) did not: all workers must read the "
        "same data"
    )
