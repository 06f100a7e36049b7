from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import SimpleTrainer
from prototrain.callbacks import LearningRate, StopOnNaN
from prototrain.errors import NonFiniteError, StepError
from prototrain.trainers.async_towers import AsyncTrainer
from tests.tiny import Losses, Recorder, tiny_datasets, tiny_model
from tests.trainers.test_replicated import poisoned


def test_towers_update_shared_variables() -> None:
    trainer = AsyncTrainer(tiny_model(), 3)
    recorder = Recorder()
    trainer.train([LearningRate(lambda step: 0.01), recorder.every(steps=50), StopOnNaN()], max_steps=200)
    assert trainer.global_step == 200
    assert recorder.steps("trigger") == [50, 100, 150, 200]
    # An update may be lost when two towers count at the same moment.
    assert 100 < int(tf.convert_to_tensor(trainer.optimizer.iterations)) <= 200
    outcome = trainer.evaluate("vld")
    assert outcome is not None and outcome["loss"] < 0.5
    assert "dropout" not in trainer.outputs and np.isfinite(trainer.outputs["loss"])


def test_first_tower_equals_simple_trainer() -> None:
    two, simple = AsyncTrainer(tiny_model(), 2, scale_gradient=False), SimpleTrainer(tiny_model())
    losses = []
    for trainer in (two, simple):
        callback = Losses()
        trainer.train([callback], max_steps=6)
        losses.append(callback.by_step)
    assert losses[0] == losses[1]


def test_gradients_are_divided_by_the_number_of_towers() -> None:
    keywords: dict[str, Any] = {"model__optimizer__method": "sgd"}
    one, two = SimpleTrainer(tiny_model(**keywords)), AsyncTrainer(tiny_model(**keywords), 2)
    start = {name: variable.numpy() for name, variable in one.trainable.items()}
    for trainer in (one, two):
        trainer.train([Losses()], max_steps=1)
    for name, variable in one.trainable.items():
        moved, half = variable.numpy() - start[name], two.trainable[name].numpy() - start[name]
        np.testing.assert_allclose(half, moved / 2, rtol=1e-3, atol=1e-7, err_msg=name)


def test_non_finite_value_ends_the_run_without_the_update() -> None:
    trainer = AsyncTrainer(tiny_model(datasets=poisoned(4, 0)), 2)
    with pytest.raises(NonFiniteError):
        trainer.train([StopOnNaN()], max_steps=400)
    for name, variable in trainer.trainable.items():
        assert np.isfinite(variable.numpy()).all(), name


def test_failing_read_ends_the_run() -> None:
    def datasets() -> dict[str, tf.data.Dataset]:
        trn = tiny_datasets()["trn"].repeat()
        checked = tf.data.Dataset.zip((trn, tf.data.Dataset.counter())).map(
            lambda batch, i: {
                "x": tf.debugging.check_numerics(batch["x"] / tf.cast(31 - i, tf.float32), "bad"),
                "y": batch["y"],
            }
        )
        return {"trn": checked}

    trainer = AsyncTrainer(tiny_model(datasets=datasets), 2)
    with pytest.raises(StepError, match=r"failed in the data: .*bad"):
        trainer.train(max_steps=100)
    assert trainer.global_step < 100
