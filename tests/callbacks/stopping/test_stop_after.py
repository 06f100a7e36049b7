from __future__ import annotations

from pathlib import Path

import pytest

from prototrain import Callback
from prototrain.callbacks import SaveOnExit, StopAfter
from tests.tiny import CountingTrainer


class EveryStep(Callback):
    """Makes the loop ask for each step."""

    def trigger_step(self) -> None:
        pass


@pytest.mark.parametrize(("lengths", "ends"), [([20], 7), ([2, 20], 7), ([2, 4, 20], 7), ([20, 20], 7), ([4, 5], 5)])
def test_the_time_of_all_runs_counts(lengths: list[int], ends: int, experiment: Path) -> None:
    trainer: CountingTrainer

    def clock() -> float:
        return trainer.global_step * 10.0  # every step takes ten seconds

    for max_steps in lengths:
        trainer = CountingTrainer(experiment=experiment)
        trainer.train([StopAfter(minutes=1, clock=clock), EveryStep(), SaveOnExit()], max_steps=max_steps)
    assert trainer.global_step == ends  # the time is up after step 6, which the loop sees before the next one


def test_it_asks_for_a_step_only_when_the_time_is_up() -> None:
    now = [0.0]
    stop_after = StopAfter(seconds=5, clock=lambda: now[0])
    stop_after.trainer = CountingTrainer()
    stop_after.setup()
    stop_after.before_train()
    assert stop_after.next_step(3) is None
    now[0] = 5.0
    assert stop_after.next_step(3) == 4
