"""One trained model for all tests of actions that read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prototrain.callbacks import ExponentialMovingAverage, MinSaver, ModelSaver, SaveOnExit, Validation
from prototrain.experiment import Experiment
from prototrain.trainers.tower import SimpleTrainer
from tests.tiny import tiny_model


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the trained experiment "tiny" lies; tests leave its checkpoints as they are."""
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(scope="session")
def trained(base: Path) -> SimpleTrainer:
    """A trainer after 20 steps with moving averages, dropout and batch normalisation, and checkpoints of 15 and 20."""
    trainer = SimpleTrainer(model_in(base), experiment=Experiment(base / "tiny"))
    trainer.train(
        [
            ExponentialMovingAverage(0.9),
            Validation().every(steps=5),
            MinSaver("vld/loss").every(steps=5),
            ModelSaver(max_to_keep=2).every(steps=5),
            SaveOnExit(),
        ]
    )
    return trainer


def model_in(base: Path, **model: Any) -> Any:
    """The tiny model with its experiments below a directory; further keywords as for `tiny_model`."""
    return tiny_model(trainer__experiment_base_dir=str(base), **model)
