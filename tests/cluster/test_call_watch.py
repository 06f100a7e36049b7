from __future__ import annotations

from typing import Any

import pytest

from prototrain.cluster.call_watch import END_SECONDS, CallWatch


class Line:
    """Stands in for a link: what it is told, and what it says of the others."""

    def __init__(self) -> None:
        self.broken: dict[str, Any] | None = None
        self.is_noticed = self.is_to_blame = self.somebody_is_silent = False
        self.whom: str | None = None
        self.failed: list[tuple[str, int]] = []
        self.verdict = "worker 1 failed: it is gone"

    def be(self, place: str, *, together: bool = False) -> None:
        self.place = place

    def whom_it_waits_for(self) -> str | None:
        return self.whom

    def fail(self, why: str, *, signum: int) -> None:
        self.failed.append((why, signum))


class Call:
    def __init__(self) -> None:
        self.now, self.begun = 0.0, 0
        self.wanted: int | None = None
        self.line, self.said, self.codes = Line(), list[str](), list[int]()
        self.watch = CallWatch(
            self.line,  # type: ignore[arg-type]
            lambda: self.begun,
            lambda: self.wanted,
            self.said.append,
            clock=lambda: self.now,
            leave=self.codes.append,
        )
        for _ in range(2):  # the first one's time is that of tracing
            with self.watch.under_way(0):
                self.now += 1.0

    def wait(self, seconds: float, *, moves: bool = False) -> None:
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            self.begun += moves
            self.watch.look()


def test_a_call_that_hangs_says_once_for_whom() -> None:
    call = Call()
    call.line.whom = "worker 1 (b:1), which is waiting for its training data in step 3"
    with call.watch.under_way(2):
        call.wait(20, moves=True)
        assert call.said == []
        call.wait(20)
        assert call.said == [f"waiting for {call.line.whom}"]


@pytest.mark.parametrize(("silent", "moves", "seconds"), [(True, False, 2), (False, False, 4), (True, True, 2)])
def test_a_signal_breaks_off_a_call_that_hangs(silent: bool, moves: bool, seconds: float) -> None:
    call = Call()
    with call.watch.under_way(2):
        call.wait(5)
        call.wanted, call.line.somebody_is_silent = 15, silent
        call.wait(1, moves=moves)
        assert call.line.failed == []
        call.wait(seconds, moves=moves)
        assert call.line.failed[0] == ("it was stopped by SIGTERM", 15)


def test_a_signal_leaves_a_call_alone_that_goes_on() -> None:
    call = Call()
    call.wanted = 15
    with call.watch.under_way(2):
        call.wait(20, moves=True)
    call.wait(20)  # in a callback
    assert call.line.failed == []


@pytest.mark.parametrize(("signum", "code"), [(None, 1), (15, 143)])
def test_a_worker_that_is_stuck_itself_ends_at_once(
    signum: int | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    call = Call()
    with call.watch.under_way(2):
        call.line.broken = {"signum": signum}
        call.wait(END_SECONDS)
        assert call.codes == []
        call.wait(1)
    assert call.codes[0] == code
    assert call.line.verdict in capsys.readouterr().err


@pytest.mark.parametrize("state", ["noticed", "busy"])
def test_a_worker_that_knows_or_will_know_ends_by_itself(state: str) -> None:
    call = Call()
    call.line.broken = {"signum": None}
    call.line.is_noticed = state == "noticed"
    call.wait(60)
    assert call.codes == []


def test_how_long_others_may_take_follows_from_the_calls_so_far() -> None:
    call = Call()
    assert call.watch.grace == 5.0
    with call.watch.under_way(2):
        call.now += 10.0
    assert call.watch.grace == 30.0
