"""Held-out data: what is averaged, over how much, and what happens if there is none."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import ModelDict
from prototrain.callbacks import JSONWriter, SaveOnExit, Validation
from prototrain.errors import CallbackError
from tests.tiny import CountingTrainer, tiny_build, tiny_datasets, tiny_trainer

LOSSES = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 100], np.float32)  # three batches of 4, 4 and 2


def mean_build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    """The tiny model, whose loss is the mean of the batch when it is validated."""
    net = tiny_build({"x": inputs["x"], "y": inputs["y"]}, train_phase)
    if not train_phase:
        net.loss = tf.reduce_mean(inputs["value"])
    return net


def mean_datasets() -> dict[str, tf.data.Dataset]:
    trn = tiny_datasets()["trn"].map(lambda batch: {**batch, "value": tf.zeros_like(batch["x"][:, 0])})
    columns = {"x": np.zeros([10, 4], np.float32), "y": np.zeros(10, np.int32), "value": LOSSES}
    return {"trn": trn, "vld": tf.data.Dataset.from_tensor_slices(columns).batch(4)}


@pytest.mark.parametrize(
    ("batches", "expected"), [(0, LOSSES.mean()), (1, 2.5), (2, 4.5), (3, LOSSES.mean()), (99, LOSSES.mean())]
)
def test_batches_count_by_their_size(batches: int, expected: float) -> None:
    trainer = tiny_trainer(build=mean_build, datasets=mean_datasets)
    trainer.train([Validation(batches=batches).every(steps=2)], max_steps=4)
    assert trainer.monitors.history("vld/loss") == [(2, pytest.approx(expected)), (4, pytest.approx(expected))]
    assert {"vld/loss", "vld/accuracy"} <= set(trainer.monitors.names())


def test_training_is_the_same_with_and_without() -> None:
    def final(*callbacks: Any) -> list[bytes]:
        trainer = tiny_trainer()
        trainer.train(callbacks, max_steps=4)
        return [variable.numpy().tobytes() for variable in trainer.variables.values()]

    assert final() == final(Validation().every(steps=1, before_train=True))


def test_a_model_without_the_dataset_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = tiny_trainer(datasets=lambda: {"trn": tiny_datasets()["trn"]})
    trainer.train([Validation().every(steps=1)], max_steps=3)
    assert trainer.monitors.names() == []
    assert capsys.readouterr().out.count("no validation: the model's datasets() gives no 'vld'") == 1


def test_another_dataset_under_another_prefix() -> None:
    trainer = tiny_trainer()
    trainer.train([Validation("trn", batches=1, prefix="again").every(steps=1)], max_steps=1)
    assert "again/loss" in trainer.monitors.names()


@pytest.mark.parametrize("trainer", [CountingTrainer, tiny_trainer])
def test_a_custom_evaluate_needs_neither_dataset_nor_trainer(trainer: Any) -> None:
    asked: list[tuple[str, int]] = []

    def evaluate(dataset: str, batches: int) -> dict[str, float]:
        asked.append((dataset, batches))
        return {"score": 0.5}

    made = trainer()
    made.train([Validation("elsewhere", batches=3, evaluate=evaluate).every(steps=2)], max_steps=2)
    assert asked == [("elsewhere", 3)]
    assert made.monitors.history("elsewhere/score") == [(2, 0.5)]


def test_a_trainer_with_evaluate_is_enough() -> None:
    class Evaluates(CountingTrainer):
        def evaluate(self, dataset: str, batches: int = 0) -> dict[str, float]:
            return {"total": self.state["total"]}

    trainer = Evaluates()
    trainer.train([Validation()], steps_per_epoch=2, max_epoch=2)
    assert trainer.monitors.history("vld/total") == [(2, 3.0), (4, 10.0)]


def test_a_trainer_without_evaluate_is_refused() -> None:
    with pytest.raises(CallbackError, match=r"CountingTrainer has not; define it, or give Validation\(evaluate=...\)"):
        CountingTrainer().train([Validation()], max_steps=1)


def test_an_evaluate_that_forgets_to_return_is_named() -> None:
    with pytest.raises(CallbackError, match=r"evaluate\('vld', ...\) returned None"):
        CountingTrainer().train([Validation(evaluate=lambda dataset, batches: None)], max_steps=1)


@pytest.mark.parametrize("batches", [-1, 1.5, None, True])
def test_wrong_numbers_of_batches_are_refused(batches: Any) -> None:
    with pytest.raises(CallbackError, match="batches must be a whole number"):
        Validation(batches=batches)


def test_an_interrupted_validation_is_done_again_by_the_resumed_run(experiment: Path) -> None:
    asked: list[int] = []

    class Interrupted(CountingTrainer):
        def evaluate(self, dataset: str, batches: int = 0) -> dict[str, float] | None:
            asked.append(self.global_step)
            if len(asked) == 1:
                os.kill(os.getpid(), signal.SIGINT)
                return None
            return {"loss": 1.0}

    callbacks = [Validation().every(steps=2), JSONWriter(), SaveOnExit()]
    with pytest.raises(KeyboardInterrupt):
        Interrupted(experiment=experiment).train(callbacks, max_steps=4)
    resumed = Interrupted(experiment=experiment)
    resumed.train(callbacks, max_steps=4)
    assert asked == [2, 2, 4]
    assert resumed.monitors.history("vld/loss") == [(2, 1.0), (4, 1.0)]
