"""What callbacks do because a run ends, or is resumed, and a run in one go would not have had them do."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from prototrain import Callback
from prototrain.callbacks import CallbackFactory, RunOp, SaveOnExit, StatMonitorParamSetter, Validation
from tests.tiny import tiny_trainer

pytestmark = pytest.mark.usefixtures("disk")


class Adds(Callback):
    """Changes a weight."""

    def trigger(self) -> None:
        variable = next(iter(self.trainer.variables.values()))
        variable.assign_add(0.1 + 0 * variable)


class AddsNothing(Callback):
    """Might change something."""

    def trigger(self) -> None:
        next(iter(self.trainer.variables.values())).assign_add(0 * next(iter(self.trainer.variables.values())))


class AddsAhead(Adds):
    """Changes a weight ahead of the first step."""

    def before_train(self) -> None:
        self.trigger()


class AddsAtFirst(AddsAhead):
    """Does so in a run that begins."""

    def before_train(self) -> None:
        if self.trainer.global_step == 0:
            self.trigger()


class Draws(Callback):
    """Draws a random number."""

    def trigger(self) -> None:
        random.random()


def draws_by_function() -> Callback:
    return RunOp(lambda: random.random(), run_before=False)


LOWERS = StatMonitorParamSetter("learning_rate", "vld/loss", lambda rate: rate / 2, mode="min", last_k=1)


@pytest.mark.parametrize(
    ("callbacks", "ends", "said"),
    [
        (lambda: [Adds().every(steps=4)], 6, "Adds has run at step 6, the end of the run, and changed "),
        (
            lambda: [draws_by_function().every(steps=4)],
            6,
            "RunOp has run at step 6, the end of the run, and changed the",
        ),
        (lambda: [Adds()], 6, "Adds has run at step 6, the end of the run, and changed "),
        (lambda: [Draws().every(epochs=2)], 6, "Draws has run at step 6, the end of the run, and changed the global"),
        (lambda: [Adds().every(steps=4)], 8, None),
        (lambda: [Adds().every(steps=3)], 6, None),
        (lambda: [Adds().every(epochs=2)], 8, None),
        (lambda: [AddsNothing().every(steps=4)], 6, None),
        (lambda: [Validation().every(steps=4)], 6, None),
        (lambda: [AddsAhead().every(steps=3)], 6, "before_train of AddsAhead has run once more and changed "),
        (lambda: [AddsAtFirst().every(steps=3)], 6, None),
        (
            lambda: [CallbackFactory(before_train=Adds.trigger)],  # type: ignore[arg-type]
            6,
            "before_train of CallbackFactory has run once more and changed ",
        ),
        (
            lambda: [Validation().every(steps=4), LOWERS],
            6,
            "Validation has measured at step 6, the end of the run, and others go by that",
        ),
    ],
)
def test_what_is_exact_when_a_run_is_made_longer(
    callbacks: Callable[[], Sequence[Callback]], ends: int, said: str | None, tmp_path: Path
) -> None:
    def train(directory: str, steps: int) -> tuple[list[bytes], str]:
        trainer = tiny_trainer(tmp_path / directory)
        trainer.train([*callbacks(), SaveOnExit()], max_steps=steps, steps_per_epoch=4)
        return [variable.numpy().tobytes() for variable in trainer.variables.values()], trainer.session.resume_line()

    whole, _ = train("whole", 12)
    train("parts", ends)
    parts, line = train("parts", 12)
    if said is None:
        assert line == f"resumed at step {ends}, exact" and parts == whole
    else:
        assert said in line
