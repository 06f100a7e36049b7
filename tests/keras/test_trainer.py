from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import KerasTrainer, default_callbacks
from prototrain.callbacks import ModelSaver, SaveOnExit, StopOnNaN, Validation
from prototrain.errors import CheckpointError, NonFiniteError
from tests.keras import models
from tests.keras.models import IMAGES, LABELS, LAYERS, MEANS, WEIGHTS, batches, classifier, made
from tests.tiny import values


def test_frozen_layers_are_not_trained() -> None:
    model = made(models.convnet)
    model.get_layer("conv").trainable = False
    model.compile("adam", model.loss)
    before = [variable.numpy() for variable in model.variables]
    trainer = KerasTrainer(model, batches(IMAGES, LABELS[:, None]))
    assert list(trainer.trainable) == ["norm/gamma", "norm/beta", "probability/kernel", "probability/bias"]
    trainer.train([], max_steps=3)
    changed = {new.path for old, new in zip(before, model.variables, strict=True) if (old != new.numpy()).any()}
    assert changed.isdisjoint({"conv/kernel", "conv/bias"}) and changed >= {"norm/moving_mean", "probability/kernel"}


class Counting(LAYERS.Layer):  # type: ignore[misc]
    """Counts its calls in variables that Keras does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.total = tf.Variable(0), [tf.Variable(0.0, trainable=False)]
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1)
        self.total[0].assign_add(1.0)
        return x + 0.0 * self.generator.normal(tf.shape(x))


def test_constructor_changes_no_state() -> None:
    counting = Counting()
    layers = [LAYERS.BatchNormalization(), counting, LAYERS.SimpleRNN(3, stateful=True), LAYERS.Dense(1)]
    model = keras.Sequential([keras.Input((5, 2), batch_size=8), *layers])
    model.compile("sgd", "mse")
    sequences = np.random.default_rng(1).normal(size=(16, 5, 2)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((sequences, MEANS[:16])).batch(8)
    model.fit(data, verbose=0, shuffle=False)

    def state() -> list[Any]:
        mine = [counting.calls, *counting.total, counting.generator.state]
        return [np.array(variable) for variable in [*model.variables, *mine]]

    before = state()
    trainer = KerasTrainer(model, data, validation=data)
    for then, now in zip(before, state(), strict=True):
        np.testing.assert_array_equal(then, now)
    trainer.train([], max_steps=5)
    assert int(counting.calls) - before[-3] == 5


def test_resume_within_an_epoch_is_exact(tmp_path: Path) -> None:
    def run(name: str, steps: int) -> KerasTrainer:
        trainer = KerasTrainer(
            made(models.own_step),
            lambda: tf.data.Dataset.from_tensor_slices((IMAGES, MEANS)).shuffle(40).batch(8),
            validation=batches(IMAGES, MEANS),
            experiment=tmp_path / name,
        )
        trainer.train([Validation().every(steps=2), ModelSaver().every(steps=4), SaveOnExit()], max_steps=steps)
        return trainer

    whole = run("whole", 9)
    run("parts", 7)
    parts = run("parts", 9)
    assert parts.run.start_row().startswith("resumed at step 7")
    assert values(parts) == values(whole) and "optimizer/iteration" in values(parts)
    assert {"of_hidden/iteration", "norm/total"} <= values(parts).keys()
    measured = [dict(trainer.monitors.history("vld/loss")) for trainer in (parts, whole)]
    assert measured[0].items() >= measured[1].items()


def test_data_of_unknown_length_resumes_exactly(tmp_path: Path) -> None:
    def run(name: str, stop: int | None = None) -> KerasTrainer:
        logger = keras.callbacks.CSVLogger(tmp_path / f"{name}.csv")
        trainer = KerasTrainer(made(classifier), models.forty, experiment=tmp_path / name)
        trainer.fit(epochs=3, verbose=0, max_steps=stop, callbacks=[logger])
        return trainer

    whole = run("whole")
    run("parts", stop=5)
    parts = run("parts")
    assert parts.run.start_row().startswith("resumed at step 5")
    assert values(parts) == values(whole) and parts.global_step == 12
    rows = [(tmp_path / f"{name}.csv").read_text() for name in ("whole", "parts")]
    assert rows[0] == rows[1] and rows[0].count("\n") == 4


def test_changes_of_the_script_are_reported(tmp_path: Path) -> None:
    def run(steps: int, rate: Any = 1e-3, kind: Any = keras.optimizers.Adam, drop: float = 0.2) -> KerasTrainer:
        made(models.convnet)  # which counts names and seeds anew
        layers = [keras.Input((6, 6, 1)), LAYERS.Flatten(), LAYERS.Dropout(drop, name="drop"), LAYERS.Dense(1)]
        model = keras.Sequential(layers, name="changing")
        model.compile(kind(rate), "mse", metrics=["mae"])
        trainer = KerasTrainer(model, batches(IMAGES, MEANS), experiment=tmp_path)
        trainer.train([SaveOnExit()], max_steps=steps)
        return trainer

    assert run(2).run.start_row() == "fresh"
    with pytest.raises(CheckpointError, match="optimizer"):
        run(3, kind=keras.optimizers.SGD)
    for steps, named in ((3, "optimizer learning_rate 0.001 -> 0.0001"), (4, "")):
        trainer = run(steps, drop=0.9, rate=1e-4)
        line = trainer.run.start_row()
        assert named in line and bool(named) == ("changed: " in line), line
        assert float(trainer.optimizer.learning_rate) == pytest.approx(1e-4)


def test_seeds() -> None:
    def drawn() -> tuple[float, float, float, float]:
        uniform = keras.random.uniform([])
        return random.random(), np.random.random(), float(tf.random.uniform([])), float(uniform)

    def run(seed: int, **config: Any) -> tuple[int, list[bytes], Any]:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(seed)
        model = models.Subclassed()  # whose layers are not built yet
        model.compile("sgd", "mse")
        keras.random.uniform([])  # which makes Keras's global generator
        trainer = KerasTrainer(model, lambda: batches(IMAGES, MEANS).shuffle(5), config=config)
        after = drawn()
        trainer.train([], max_steps=2)
        return trainer.config["trainer.random_seed"], [np.asarray(v).tobytes() for v in model.variables], after

    keras.utils.set_random_seed(5)
    models.Subclassed()
    keras.random.uniform([])
    expected = drawn()
    first, again, other = run(5), run(5, **{"trainer.random_seed": 9}), run(6)
    assert first[0] == 5 and first[2] == again[2] == expected and again[0] == 9
    assert other[0] == 6 and first[1] != other[1]


@pytest.mark.parametrize("make", [models.regularized, models.own_step])
def test_non_finite_loss_is_not_applied(make: Callable[[], keras.Model]) -> None:
    model = made(make)
    model.compile(keras.optimizers.SGD(1e30), model.loss, metrics=["accuracy"])
    labels = LABELS if make is models.regularized else MEANS
    with pytest.raises(NonFiniteError, match="in step 2"):
        KerasTrainer(model, batches(IMAGES, labels)).train([StopOnNaN()], max_steps=5)
    assert all(np.isfinite(variable.numpy()).all() for variable in model.variables)


def test_default_callbacks_and_predictor(tmp_path: Path) -> None:
    data = batches({"image": IMAGES}, {"label": LABELS, "mean": MEANS})
    model = made(models.two_outputs)
    keys = {"trainer.validation_step_interval": 2, "model.num_steps": 4}
    trainer = KerasTrainer(model, data, validation=data, experiment=tmp_path / "two", config=keys)
    trainer.train(default_callbacks(trainer.model))
    assert trainer.run.checkpoints.steps() == [4]
    assert [step for step, _ in trainer.monitors.history("vld/loss")] == [2, 4]
    assert list(trainer.element_spec) == ["x/image", "y/label", "y/mean"]
    predict = trainer.get_predictor(["x/image"], ["y_pred/label"])
    np.testing.assert_allclose(predict(IMAGES)[0], model({"image": IMAGES})["label"], atol=1e-6)
    counted = [variable.numpy() for variable in model.metrics_variables]
    assert trainer.evaluate("vld", batches=1) is not None
    assert counted == [variable.numpy() for variable in model.metrics_variables]


def test_loss_scale_in_16_bits() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential([keras.Input((6, 6, 1)), LAYERS.Flatten(), LAYERS.Dense(1)])
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile("sgd", "mse")
    trainer = KerasTrainer(model, batches(IMAGES, MEANS))
    assert trainer.loss_scale is not None and trainer.optimizer is model.optimizer.inner_optimizer


def test_validation_data_may_have_another_structure() -> None:
    model = made(models.regularized)
    model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    with_weights = batches(IMAGES, LABELS, 0 * WEIGHTS)
    trainer = KerasTrainer(model, batches(IMAGES, LABELS), validation=with_weights)
    expected = model.evaluate(with_weights, verbose=0, return_dict=True)
    assert trainer.evaluate("vld") == pytest.approx(expected, rel=1e-5)
