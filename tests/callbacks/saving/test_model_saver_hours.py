from __future__ import annotations

from pathlib import Path

import pytest

from prototrain.callbacks import ModelSaver, SaveOnExit
from prototrain.errors import CallbackError
from tests.callbacks.saving.test_best_saver import checkpoints
from tests.tiny import CountingTrainer


@pytest.mark.parametrize("stop", [None, 3, 7, 8])
def test_one_checkpoint_in_so_many_hours_stays(stop: int | None, experiment: Path) -> None:
    trainer: CountingTrainer

    def clock() -> float:
        return trainer.global_step * 1200.0  # three steps make an hour

    for max_steps in (10,) if stop is None else (stop, 10):
        trainer = CountingTrainer(experiment=experiment)
        saver = ModelSaver(max_to_keep=1, keep_every_n_hours=1, clock=clock)
        trainer.train([saver.every(steps=1), SaveOnExit()], max_steps=max_steps)
    assert checkpoints(experiment) == [3, 6, 9, 10]


@pytest.mark.parametrize("arguments", [{"max_to_keep": 0}, {"keep_every_n_hours": 0}])
def test_wrong_arguments(arguments: dict[str, float]) -> None:
    with pytest.raises(CallbackError, match="ModelSaver"):
        ModelSaver(**arguments)  # type: ignore[arg-type]
