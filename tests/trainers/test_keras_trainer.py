"""A compiled Keras model trains as `fit` trains it, and resumes, stops and fails as every other model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import KerasTrainer, default_callbacks
from prototrain.callbacks import KerasCallback, ModelSaver, SaveOnExit, StopOnNaN, Validation
from prototrain.errors import DataError, ModelError, NonFiniteError, PrototrainError
from prototrain.experiment.provenance import differences
from tests.tiny import values

LAYERS = keras.layers
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(size=(40, 6, 6, 1)).astype(np.float32)
MEANS = IMAGES.mean((1, 2, 3))[:, None]
LABELS = (MEANS[:, 0] > 0).astype(np.int32)
WEIGHTS = RANDOM.uniform(0.5, 2.0, size=40).astype(np.float32)


def batches(*parts: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(parts).batch(16)  # the last one is short


def mlp() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            LAYERS.Flatten(),
            LAYERS.Dense(8, activation="relu", kernel_regularizer="l2", kernel_constraint="non_neg", name="hidden"),
            LAYERS.Dropout(0.3, seed=5),
            LAYERS.Dense(2, name="logits"),
        ],
        name="mlp",
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def convnet() -> keras.Model:
    image = keras.Input((6, 6, 1))
    hidden = LAYERS.BatchNormalization(name="norm")(LAYERS.Conv2D(4, 3, name="conv")(image))
    hidden = LAYERS.GlobalAveragePooling2D()(LAYERS.Dropout(0.2)(LAYERS.ReLU()(hidden)))
    model = keras.Model(image, LAYERS.Dense(1, activation="sigmoid", name="probability")(hidden), name="convnet")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "binary_crossentropy", metrics=[keras.metrics.AUC()])
    return model


def two_outputs() -> keras.Model:
    image = keras.Input((6, 6, 1), name="image")
    hidden = LAYERS.Dense(8, activation="tanh", name="hidden")(LAYERS.Flatten()(image))
    outputs = {
        "label": LAYERS.Dense(2, activation="softmax", name="label")(hidden),
        "mean": LAYERS.Dense(1, name="mean")(hidden),
    }
    model = keras.Model({"image": image}, outputs, name="two")
    model.compile(
        "rmsprop",
        loss={"label": "sparse_categorical_crossentropy", "mean": "mse"},
        loss_weights={"label": 1.0, "mean": 0.3},
        metrics={"mean": ["mae"]},
    )
    return model


class Subclassed(keras.Model):
    """Adds a loss of its own, and is not built before it is trained."""

    def __init__(self) -> None:
        super().__init__(name="subclassed")
        self.hidden = LAYERS.Dense(8, activation="relu", name="hidden")
        self.out = LAYERS.Dense(1, name="out")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        hidden = self.hidden(tf.reshape(inputs, [-1, 36]))
        self.add_loss(0.01 * tf.reduce_mean(hidden**2))
        return self.out(hidden)


def weighted() -> keras.Model:
    model = Subclassed()
    model.compile(keras.optimizers.AdamW(1e-2, use_ema=True), "mse", weighted_metrics=["mae"])
    return model


KINDS: dict[Callable[[], keras.Model], tuple[Any, ...]] = {
    mlp: (IMAGES, LABELS),
    convnet: (IMAGES, LABELS[:, None]),
    two_outputs: ({"image": IMAGES}, {"label": LABELS, "mean": MEANS}),
    weighted: (IMAGES, MEANS, WEIGHTS),
}


class Logs(keras.callbacks.Callback):
    """Keeps the logs of every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.by_epoch: list[dict[str, float]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.by_epoch.append(dict(logs))


def made(make: Callable[[], keras.Model]) -> keras.Model:
    """The same model in the same state each time, as in a process of its own."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    return make()


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_model_trains_as_in_fit(make: Callable[[], keras.Model]) -> None:
    data = batches(*KINDS[make])
    there, expected = made(make), Logs()
    there.fit(data, validation_data=data, epochs=2, verbose=0, shuffle=False, callbacks=[expected])
    here, found = made(make), Logs()
    KerasTrainer(here, data, validation=data).train([Validation(), KerasCallback(found)], max_epoch=2)
    assert len(found.by_epoch) == 2
    for mine, theirs in zip(found.by_epoch, expected.by_epoch, strict=True):
        assert {name: mine[name] for name in theirs} == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    all_mine, all_theirs = ([*model.variables, *model.optimizer.variables] for model in (here, there))
    for mine, theirs in zip(all_mine, all_theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5, err_msg=mine.path)


def test_making_a_trainer_changes_nothing_in_a_trained_model_and_frozen_layers_stay() -> None:
    data = batches(*KINDS[convnet])
    model = made(convnet)
    model.fit(data, verbose=0, shuffle=False)
    model.get_layer("conv").trainable = False
    model.compile("adam", model.loss)
    before = [variable.numpy() for variable in model.variables]
    trainer = KerasTrainer(model, data)
    assert all((old == new.numpy()).all() for old, new in zip(before, model.variables, strict=True))
    assert list(trainer.trainable) == ["norm/gamma", "norm/beta", "probability/kernel", "probability/bias"]
    trainer.train([], max_steps=3)
    changed = {new.path for old, new in zip(before, model.variables, strict=True) if (old != new.numpy()).any()}
    assert changed.isdisjoint({"conv/kernel", "conv/bias"}) and changed >= {"norm/moving_mean", "probability/kernel"}


def test_a_resumed_run_is_exact_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    def run(name: str, steps: int) -> KerasTrainer:
        model = made(convnet)
        model.compile("adam", model.loss, metrics=["accuracy"])
        trainer = KerasTrainer(
            model,
            lambda: tf.data.Dataset.from_tensor_slices(KINDS[convnet]).shuffle(40).batch(8),
            validation=batches(*KINDS[convnet]),
            experiment=tmp_path / name,
        )
        trainer.train([Validation().every(steps=2), ModelSaver().every(steps=4), SaveOnExit()], max_steps=steps)
        return trainer

    whole = run("whole", 9)
    run("parts", 7)
    parts = run("parts", 9)
    assert parts.storage.resume_line() == "resumed at step 7, exact"
    assert values(parts) == values(whole) and "optimizer/iteration" in values(parts)
    measured = [dict(trainer.monitors.history("vld/accuracy")) for trainer in (parts, whole)]
    assert measured[0].items() >= measured[1].items()
    parts.keras_model.compile(keras.optimizers.Adam(beta_1=0.8), parts.keras_model.loss, metrics=["accuracy"])
    other = KerasTrainer(parts.keras_model, batches(*KINDS[convnet])).provenance()
    assert "compiled with optimizer beta_1 was 0.9 and is 0.8" in differences(parts.provenance(), other)


def test_data_that_has_no_seed_is_said_to_resume_inexactly() -> None:
    tf.random.set_seed(None)  # as before any seed was set
    shuffled = batches(IMAGES, LABELS).shuffle(3)
    assert "without a seed" in KerasTrainer(made(mlp), shuffled).resume_caveats()[0]
    seeded = batches(IMAGES, LABELS).shuffle(3, seed=1)
    assert KerasTrainer(made(mlp), seeded).resume_caveats() == []
    assert KerasTrainer(made(mlp), lambda: batches(IMAGES, LABELS).shuffle(3)).resume_caveats() == []


def test_a_loss_that_is_not_finite_is_not_applied() -> None:
    model = made(mlp)
    model.compile(keras.optimizers.SGD(1e30), model.loss, metrics=["accuracy"])
    with pytest.raises(NonFiniteError, match="in step 2"):
        KerasTrainer(model, batches(IMAGES, LABELS)).train([StopOnNaN()], max_steps=5)
    assert all(np.isfinite(variable.numpy()).all() for variable in [*model.variables, *model.metrics_variables])


def test_the_default_callbacks_and_predictions_by_name(tmp_path: Path) -> None:
    model, data = made(two_outputs), batches(*KINDS[two_outputs])
    keys = {"trainer.validation_step_interval": 2, "model.num_steps": 4}
    trainer = KerasTrainer(model, data, validation=data, experiment=tmp_path / "two", config=keys)
    trainer.train(default_callbacks(trainer.model))
    assert trainer.storage.checkpoints.steps() == [4]
    assert [step for step, _ in trainer.monitors.history("vld/loss")] == [2, 4]
    assert list(trainer.element_spec) == ["x/image", "y/label", "y/mean"]
    predict = trainer.get_predictor(["x/image"], ["y_pred/label"])
    np.testing.assert_allclose(predict(IMAGES)[0], model({"image": IMAGES})["label"], atol=1e-6)
    counted = [variable.numpy() for variable in model.metrics_variables]
    assert trainer.evaluate("vld", batches=1) is not None
    assert counted == [variable.numpy() for variable in model.metrics_variables]
    with pytest.raises(DataError, match="no dataset 'tst'; there are trn, vld"):
        trainer.evaluate("tst")


def flowers(examples: int = 40, columns: int = 4) -> tf.data.Dataset:
    points = np.random.default_rng(1).normal(size=(examples, columns)).astype(np.float32)
    return batches(points, (points[:, 0] > 0).astype(np.int32))


def noisy() -> keras.Model:
    """A model that draws random numbers and moves its statistics also when it is evaluated."""
    keras.utils.set_random_seed(3)

    class Noise(LAYERS.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="noise")
            self.seed = keras.random.SeedGenerator(5)

        def call(self, x: Any) -> Any:
            return x + keras.random.normal(keras.ops.shape(x), seed=self.seed)

    model = keras.Sequential([keras.Input((4,)), Noise(), LAYERS.Dense(2, name="logits")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    return model


def test_the_validation_is_tried_out_before_the_first_step_and_moves_nothing() -> None:
    def final(*callbacks: Any) -> list[bytes]:
        model = noisy()
        KerasTrainer(model, flowers(), validation=flowers()).train(callbacks, max_steps=4)
        return [np.asarray(variable).tobytes() for variable in model.variables]

    late = Validation()  # not due before the run is over
    late.at_end = False
    assert final(late.every(steps=50)) == final()


def test_a_mistake_in_the_validation_shows_before_the_first_step() -> None:
    trainer = KerasTrainer(noisy(), flowers(), validation=flowers(columns=3))
    with pytest.raises(ValueError, match="expected"):
        trainer.train([Validation().every(steps=50)], max_steps=60)
    assert trainer.global_step == 0


def test_in_16_bits_the_loss_is_scaled_by_the_engine() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential([keras.Input((6, 6, 1)), LAYERS.Flatten(), LAYERS.Dense(1)])
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile("sgd", "mse")
    trainer = KerasTrainer(model, batches(IMAGES, MEANS))
    assert trainer.loss_scale is not None and trainer.optimizer is model.optimizer.inner_optimizer


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> dict[str, Any]:
        return {}


def own_step() -> keras.Model:
    model = OwnStep(name="own")
    model.compile("adam")
    return model


def scaled() -> keras.Model:
    model = keras.Sequential([keras.layers.Dense(2)], name="scaled")
    model.compile(keras.optimizers.SGD(loss_scale_factor=8.0), "mse")
    return model


@pytest.mark.parametrize(
    ("model", "data", "error", "message"),
    [
        (lambda: 3, None, ModelError, "KerasTrainer takes a keras.Model, not int"),
        (lambda: keras.Sequential(name="raw"), None, ModelError, r"raw has no optimizer: call its compile"),
        (own_step, None, ModelError, "own has a train_step of its own"),
        (scaled, None, ModelError, "optimizer of scaled has a loss_scale_factor"),
        (mlp, (IMAGES, LABELS), DataError, r"takes a tf.data.Dataset of \(x, y\), batched.*, not tuple"),
        (mlp, batches(IMAGES, LABELS).take(0), DataError, "the training dataset is empty"),
    ],
)
def test_what_cannot_be_trained_is_one_clear_line(
    model: Any, data: Any, error: type[PrototrainError], message: str
) -> None:
    with pytest.raises(error, match=message):
        KerasTrainer(model(), data)
