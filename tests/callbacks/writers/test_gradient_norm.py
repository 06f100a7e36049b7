from __future__ import annotations

import numpy as np
import pytest

from prototrain.callbacks import GradientNorm, StopOnNaN
from tests.tiny import tiny_trainer, values


def test_it_is_the_norm_before_the_processors() -> None:
    config = {"model__optimizer__method": "sgd", "model__lr_schedule__constant__value": 1.0}
    trainer = tiny_trainer(**config)
    before = {name: v.numpy() for name, v in trainer.trainable.items()}
    trainer.train([GradientNorm(), StopOnNaN()], max_steps=1)
    step = sum(np.sum((v.numpy() - before[name]) ** 2) for name, v in trainer.trainable.items())
    assert trainer.outputs["gradient_norm"] == pytest.approx(np.sqrt(step), rel=1e-4)
    clipped = tiny_trainer(**config, model__clip_gradients__global_norm=0.01)
    clipped.train([GradientNorm()], max_steps=1)
    assert clipped.outputs["gradient_norm"] == trainer.outputs["gradient_norm"] > 0.01


def test_it_changes_nothing_and_is_not_there_unless_asked_for() -> None:
    trainers = [tiny_trainer(), tiny_trainer()]
    trainers[0].train([], max_steps=5)
    trainers[1].train([GradientNorm()], max_steps=5)
    assert values(trainers[0]) == values(trainers[1])
    trainers[1].train([], max_steps=6)
    assert "gradient_norm" not in trainers[0].outputs and "gradient_norm" not in trainers[1].outputs
