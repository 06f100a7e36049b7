from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import Callback, ModelDict, SimpleTrainer, default_callbacks
from prototrain.callbacks import InferenceRunner, JSONWriter, SaveOnExit, ScalarStats, Validation
from prototrain.callbacks.base import innermost
from prototrain.checkpoint.values import random_state
from prototrain.errors import DataError, StepError
from tests.tiny import CountingTrainer, tiny_arrays, tiny_build, tiny_datasets, tiny_model, tiny_trainer, values

LOSSES = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 100], np.float32)  # three batches of 4, 4 and 2


def mean_build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    """The tiny model, whose validation loss is the mean of the batch."""
    net = tiny_build({"x": inputs["x"], "y": inputs["y"]}, train_phase)
    if not train_phase:
        net.loss = tf.reduce_mean(inputs["value"])
    return net


def mean_datasets() -> dict[str, tf.data.Dataset]:
    trn = tiny_datasets()["trn"].map(lambda batch: {**batch, "value": tf.zeros_like(batch["x"][:, 0])})
    columns = {"x": np.zeros([10, 4], np.float32), "y": np.zeros(10, np.int32), "value": LOSSES}
    vld = tf.data.Dataset.from_tensor_slices(columns).batch(4)
    return {"trn": trn, "vld": vld, "odd": vld.filter(lambda batch: True)}  # of unknown length


def test_batches_are_weighted_by_size() -> None:
    expected = {0: LOSSES.mean(), 1: 2.5, 99: LOSSES.mean()}
    validations = [Validation(batches=batches, prefix=f"of{batches}").every(steps=2) for batches in expected]
    other = Validation("odd", batches=2, prefix="again").every(steps=2)
    trainer = tiny_trainer(build=mean_build, datasets=mean_datasets)
    trainer.train([*validations, other], max_steps=4)
    for batches, mean in expected.items():
        history = trainer.monitors.history(f"of{batches}/loss")
        assert history == [(2, pytest.approx(mean)), (4, pytest.approx(mean))], batches
    assert {"of0/accuracy", "again/loss", "again/accuracy"} <= set(trainer.monitors.names())
    assert trainer.monitors.latest("again/loss") == pytest.approx(4.5)


def test_no_batch_is_read_ahead_of_the_last_one() -> None:
    read = []

    def datasets() -> dict[str, tf.data.Dataset]:
        def batches() -> Any:
            for number in range(20):
                read.append(number)
                yield tiny_arrays(8)

        spec = tiny_datasets()["trn"].element_spec
        return {**tiny_datasets(), "vld": tf.data.Dataset.from_generator(batches, output_signature=spec)}

    trainer = tiny_trainer(datasets=datasets)
    read.clear()
    for _ in range(3):
        trainer.evaluate("vld", 2)
    assert read == [0, 1] * 3


def test_validation_does_not_change_training(capsys: pytest.CaptureFixture[str]) -> None:
    def final(*callbacks: Any, datasets: Any = tiny_datasets) -> dict[str, bytes]:
        trainer = tiny_trainer(datasets=datasets)
        trainer.train(callbacks, max_steps=4)
        return values(trainer)

    without = final(Validation().every(steps=1), datasets=lambda: {"trn": tiny_datasets()["trn"]})
    assert capsys.readouterr().out.count("no validation: the model's datasets() has no 'vld'; it has: trn") == 1
    assert without == final(Validation().every(steps=1, before_train=True))


@pytest.mark.parametrize(
    ("dataset", "batches", "words"),
    [
        ("vld", -1, "at least 0"),
        ("no", 0, "gives no 'no'"),
        ([1], 0, "takes a name; name one of trn"),
        ("trn", 0, "is infinite"),
    ],
)
def test_evaluate_refuses(dataset: str, batches: int, words: str) -> None:
    trainer = tiny_trainer(datasets=lambda: {**tiny_datasets(), "trn": tiny_datasets()["trn"].repeat()})
    with pytest.raises(DataError, match=words):
        trainer.evaluate(dataset, batches)


def test_custom_evaluate_and_interrupted_evaluation(experiment: Path) -> None:
    asked: list[Any] = []

    def evaluate(dataset: str, batches: int) -> dict[str, float]:
        asked.append((dataset, batches))
        return {"score": 0.5}

    made = CountingTrainer()
    made.train([Validation("elsewhere", batches=3, evaluate=evaluate).every(steps=2)], max_steps=2)
    assert asked.pop() == ("elsewhere", 3) and made.monitors.history("elsewhere/score") == [(2, 0.5)]

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


def failing_build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    net = tiny_build(inputs, train_phase)
    if not train_phase:
        net.loss = tf.debugging.check_numerics(net.loss / 0.0, "held-out loss")
    return net


@pytest.mark.parametrize(("rehearses", "fails_at"), [(True, 2), (False, 3)])
def test_error_before_the_first_step_of_a_resumed_run(rehearses: bool, fails_at: int, experiment: Path) -> None:
    config = {"trainer__rehearse_validation": rehearses, "trainer__validation_step_interval": 3}
    model = tiny_model(build=failing_build, **config)
    SimpleTrainer(model, experiment=experiment).train([SaveOnExit()], max_steps=2)
    (validation,) = [cb for cb in default_callbacks(model) if isinstance(innermost(cb), Validation)]
    trainer = SimpleTrainer(model, experiment=experiment)
    with pytest.raises(StepError, match=r"evaluating 'vld' at step .* failed in the model: .*held-out loss"):
        trainer.train([validation], max_steps=9)
    assert trainer.global_step == fails_at


def moving_build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    """A model with state that an evaluation changes: random layers, batch statistics and a counter."""
    net = tiny_build(inputs, train_phase)
    seen = tf.Variable(0.0, trainable=False, name="seen")
    net.count = seen.assign_add(1.0)
    keras.layers.BatchNormalization(name="bn1")(inputs["x"], training=True)
    net.noise = tf.reduce_sum(keras.layers.GaussianNoise(1.0, name="noise")(inputs["x"], training=True))
    return net


def drawing() -> dict[str, tf.data.Dataset]:
    """Data whose validation examples depend on the random numbers of Python and NumPy."""

    def draw(x: Any) -> Any:
        return np.float32(x + np.random.normal() + random.random())

    def shifted(batch: dict[str, Any]) -> dict[str, Any]:
        x = tf.numpy_function(draw, [batch["x"]], tf.float32)
        return {**batch, "x": tf.ensure_shape(x, [None, 4])}

    return {**tiny_datasets(), "vld": tiny_datasets()["vld"].map(shifted)}


def test_rehearsal_changes_no_state(experiment: Path) -> None:
    def state(*callbacks: Callback, directory: Path | None = None) -> Any:
        trainer = tiny_trainer(directory, build=moving_build, datasets=drawing)
        random.seed(5)
        np.random.seed(5)
        rest: list[Any] = []

        class AtStart(Callback):
            def before_epoch(self) -> None:
                rest.append((values(trainer), random_state(), trainer.data.offset))

        trainer.train([*callbacks, AtStart()], max_steps=4)
        return rest[0], values(trainer), trainer.monitors.names()

    saver = tiny_trainer(experiment, build=moving_build, datasets=drawing)
    saver.train([SaveOnExit()], max_steps=2)
    late = Validation()  # not due before the run is over
    late.at_end = False
    assert state(late.every(steps=50), directory=experiment) == state(directory=experiment)


def test_evaluation_does_not_change_the_seeds_of_training() -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        """A GRU, for which Keras draws dropout masks without training, too, and a generator of TensorFlow."""
        inputs = {**inputs, "x": inputs["x"] + generator.normal(tf.shape(inputs["x"]))}
        words = tf.cast(tf.abs(inputs["x"]) * 10, tf.int32) % 7
        embedded = keras.layers.Embedding(7, 3, name="embedding")(words)
        state = keras.layers.GRU(4, dropout=0.2, recurrent_dropout=0.2, name="gru")(embedded, training=train_phase)
        return tiny_build({**inputs, "x": state}, train_phase)

    ends = []
    for callbacks in ([], [Validation(), InferenceRunner("vld", [ScalarStats("loss")], prefix="b")]):
        generator = tf.random.Generator.from_seed(1)
        trainer = tiny_trainer(build=build)
        trainer.train([callback.every(steps=3) for callback in callbacks], max_steps=10)
        ends.append(values(trainer))
    assert ends[0] == ends[1]
