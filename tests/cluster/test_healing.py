from __future__ import annotations

from typing import Any

import pytest

from prototrain.cluster.healing import Healing
from prototrain.cluster.host import State

NAMES = ["worker 0 (a:1, the chief)", "worker 1 (b:1)", "worker 2 (c:1)"]


def failed(kind: str = "ValueError", *, step: int | None = 7, lasting: bool = False, other: bool = False) -> State:
    failure = {"kind": kind, "text": f"{kind}: no", "step": step, "is_lasting": lasting, "is_of_another": other}
    return State(code=1, step=step, failure=failure)


FOLLOWS, KILLED = failed("ClusterError", other=True), State(code=-9, step=7)
LOST = State(is_lost=True, step=3)


@pytest.mark.parametrize(
    ("states", "killed", "cause"),
    [
        (
            [FOLLOWS, State(code=-9, step=7), FOLLOWS],
            {},
            "worker 1 (b:1) was killed by SIGKILL, heard of last at step 7",
        ),
        ([FOLLOWS, FOLLOWS, failed()], {}, "worker 2 (c:1) failed at step 7: ValueError: no"),
        ([State(code=-9), FOLLOWS, failed()], {}, "worker 2 (c:1) failed at step 7: ValueError: no"),
        ([FOLLOWS, FOLLOWS, State(code=-11)], {}, "worker 2 (c:1) was killed by SIGSEGV"),
        (
            [FOLLOWS, State(is_lost=True, step=3), FOLLOWS],
            {},
            "worker 1 (b:1) is lost with its machine, heard of last at step 3",
        ),
        ([FOLLOWS, FOLLOWS, State(code=-9)], {2: "was silent"}, "worker 2 (c:1) was silent"),
        ([State(code=143), State(code=143), State(is_lost=True)], {}, "worker 2 (c:1) is lost with its machine"),
        ([State(code=143), State(code=143), State(code=143)], {}, "worker 0 (a:1, the chief) was stopped by SIGTERM"),
        ([FOLLOWS, State(code=3), State(code=0)], {}, "worker 1 (b:1) ended with exit code 3"),
        ([FOLLOWS, FOLLOWS, FOLLOWS], {}, "worker 0 (a:1, the chief) failed at step 7: ClusterError: no"),
    ],
)
def test_who_is_to_blame(states: list[State], killed: dict[int, str], cause: str) -> None:
    healing = Healing(5)
    healing.has_begun = True
    verdict = healing.judge(NAMES, states, killed)
    assert verdict.cause == cause and not verdict.is_over and healing.restarts == 1


@pytest.mark.parametrize(
    ("ends", "advice"),
    [
        ([failed(), failed()], "for the second time at the same step"),
        ([failed(step=7), failed(step=9), failed(step=7)], "for the second time at the same step"),
        ([failed(step=7), failed("OSError", step=7), State(code=-9), State(code=-9)], "after 3 restarts"),
        ([State(code=-11, step=4), State(code=-11, step=4)], "for the second time at the same step"),
        ([State(code=-9, step=4)] * 4, "after 3 restarts"),
        ([failed(step=None)], "before its first step"),
        ([State(code=-9), failed(step=None)], "before its first step"),
        ([failed("ConfigError", lasting=True)], ""),
        ([State(code=-9, step=1), failed("NonFiniteError", lasting=True)], ""),
    ],
)
def test_what_ends_a_run(ends: list[State], advice: str) -> None:
    healing = Healing(3)
    for number, state in enumerate(ends):
        verdict = healing.judge(NAMES[:2], [FOLLOWS if state.step is not None else State(code=143), state], {})
        assert verdict.is_over == (number == len(ends) - 1)
    assert verdict.advice == advice and verdict.worker == 1


def test_the_pause_grows_while_a_run_comes_no_further() -> None:
    healing, pauses = Healing(100), []

    def end(step: int | None) -> None:
        healing.judge(NAMES[:1], [State(code=-9, step=step)], {})
        pauses.append(healing.pause)

    for step in (None, None, 4, 4, 4, 5, *[5] * 8):
        end(step)
    assert pauses == [2, 4, 1, 2, 4, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_no_restarts() -> None:
    state: Any = State(code=-9, step=3)
    assert Healing(0).judge(NAMES[:1], [state], {}).is_over
