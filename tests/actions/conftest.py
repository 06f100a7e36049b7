"""A trained model, shared by the tests of actions."""

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
    """The parent directory of the trained experiment "tiny"; tests do not change its checkpoints."""
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(scope="session")
def trained(base: Path) -> SimpleTrainer:
    """A trainer after 20 steps with moving averages, dropout and batch normalization, and checkpoints of 15 and 20."""
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
    """The tiny model with experiments in a directory; other arguments are those of `tiny_model`."""
    return tiny_model(trainer__experiment_base_dir=str(base), **model)
