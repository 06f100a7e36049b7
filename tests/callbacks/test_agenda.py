"""Who has still to run for a step, also across a checkpoint."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from prototrain import Callback
from prototrain.callbacks.agenda import Agenda
from prototrain.errors import CallbackError
from tests.tiny import Recorder


class At(Callback):
    """Asks for one step, and runs after epochs as well if it is told to."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def next_step(self, step: int) -> int | None:
        return self.step

    def trigger_step(self) -> None: ...


class AfterEpoch(Callback):
    def trigger(self) -> None: ...


def agenda_at(step: int, **callbacks: Callback) -> Agenda:
    """The agenda of a run of 10 steps in epochs of 4, at a completed step."""
    trainer: Any = SimpleNamespace(
        counter=SimpleNamespace(step=step), global_step=step, local_step=step % 4, steps_per_epoch=4, total_steps=10
    )
    trainer.end_of_epoch = step // 4 * 4 + 4
    return Agenda(trainer, {callback: label for label, callback in callbacks.items()})


def labels(agenda: Agenda) -> list[str]:
    found: list[str] = agenda.state_dict()["pending"]
    return found


@pytest.mark.parametrize(
    ("step", "asked", "nearest", "due"),
    [
        (0, 2, 2, ["at"]),
        (0, None, 4, ["epoch"]),
        (0, 4, 4, ["at", "epoch"]),
        (0, 7, 4, ["epoch"]),
        (9, None, 10, ["epoch"]),
    ],
)
def test_the_nearest_step_and_who_is_due_then(step: int, asked: int | None, nearest: int, due: list[str]) -> None:
    at, epoch = At(asked), AfterEpoch()
    found, callbacks = agenda_at(step, at=at, epoch=epoch).ask()
    assert found == nearest and [{at: "at", epoch: "epoch"}[callback] for callback in callbacks] == due


def test_a_step_that_is_over_is_refused() -> None:
    with pytest.raises(CallbackError, match=r"At.next_step\(3\) returned 3, which is not after step 3"):
        agenda_at(3, at=At(3)).ask()


def test_an_epoch_follows_the_step_that_ends_it() -> None:
    at = At(4)
    agenda = agenda_at(3, at=at, epoch=AfterEpoch())
    agenda.ask()
    agenda._trainer.counter.step = agenda._trainer.global_step = agenda._trainer.local_step = 4
    agenda.epoch = "begun"
    agenda.begin_step()
    assert agenda.phase == "step" and agenda.current is at
    agenda.done()
    agenda.end_phase()
    assert agenda.phase == "after_epoch" and labels(agenda) == []
    agenda.end_phase()
    assert agenda.phase == "epoch" and labels(agenda) == ["epoch"] and agenda.epoch == "ahead"
    agenda.done()
    agenda.end_phase()
    assert agenda.phase is None and agenda.current is None


def test_who_saves_has_run_and_who_failed_has_not() -> None:
    agenda = agenda_at(4, first=AfterEpoch(), second=AfterEpoch())
    agenda.begin_triggers()
    agenda.is_running = True
    assert labels(agenda) == ["second"]
    agenda.is_running = False
    assert labels(agenda) == ["first", "second"]


def test_what_is_left_goes_into_a_checkpoint_and_comes_back() -> None:
    saved = {"phase": "epoch", "pending": ["second", "gone"], "fired": ["first", "gone"]}
    first, second = Recorder().every(steps=2), AfterEpoch()
    agenda = agenda_at(4, first=first, second=second)
    first.trainer = agenda._trainer
    agenda.load_state_dict(saved)
    assert agenda.current is second and first.fired_at(4)
    found = {"phase": "epoch", "epoch": "ahead", "begun_at": 4, "pending": ["second"], "fired": ["first"]}
    assert agenda.state_dict() == found
