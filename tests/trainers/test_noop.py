from __future__ import annotations

from pathlib import Path

from prototrain import NoOpTrainer
from prototrain.callbacks import SaveOnExit
from tests.tiny import Recorder


def test_it_runs_the_callbacks_only(experiment: Path) -> None:
    for steps in (5, 9):
        trainer, recorder = NoOpTrainer(experiment=experiment), Recorder()
        trainer.train([recorder.every(steps=2), SaveOnExit()], max_steps=steps)
        assert trainer.outputs == {}
    assert trainer.global_step == 9
    assert recorder.steps("trigger") == [6, 8, 9]
