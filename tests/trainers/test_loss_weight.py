"""Losses with `loss_weight` do not depend on how a batch is divided."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import SyncParameterServerTrainer, SyncReplicatedTrainer
from prototrain.callbacks import Callback, InferenceRunner, ProcessTensors, ScalarStats, StopOnNaN
from prototrain.errors import ConfigError, DataError, ModelError, NonFiniteError
from prototrain.trainers.tower import SimpleTrainer
from tests.tiny import Records, tiny_arrays, tiny_model, tiny_trainer

Y = np.array([[1, 1, 1, 1], [9, 9, 9, 9]], np.float32)
MASK = np.array([[1, 1, 1, 1], [1, 0, 0, 0]], np.float32)


def masked(batch_size: int = 2, *, y: Any = Y, mask: Any = MASK, regularizer: Any = None, **keys: Any) -> Any:
    """A number for each column, trained with a mean over the unmasked entries."""

    def datasets() -> dict[str, tf.data.Dataset]:
        data = tf.data.Dataset.from_tensor_slices({"y": y, "mask": mask})
        return {"trn": data.batch(len(y)), "vld": data.batch(batch_size)}

    def build(inputs: dict[str, tf.Tensor], train_phase: bool) -> dict[str, tf.Tensor]:
        options = {"use_bias": False, "kernel_initializer": "zeros", "activity_regularizer": regularizer}
        layer = keras.layers.Dense(y.shape[1], name="d", **options)
        guess = layer(tf.ones_like(inputs["y"][:, :1]))
        weight = tf.reduce_sum(inputs["mask"])
        right = tf.reduce_sum(inputs["mask"] * inputs["y"]) / weight
        loss = tf.reduce_sum((guess - inputs["y"]) ** 2 * inputs["mask"]) / weight
        return {"loss": loss, "label": right, "loss_weight": weight}

    keys = {"model.num_steps": 2, "model.batch_size": len(y), "model.optimizer.method": "sgd", **keys}
    return tiny_model(build=build, datasets=datasets, **{"model.lr_schedule.constant.value": 0.1, **keys})


def trained(trainer: Any, *callbacks: Callback) -> tuple[list[dict[str, float]], np.ndarray[Any, Any]]:
    outputs = Records(lambda trainer: {name: float(value) for name, value in trainer.outputs.items()})
    trainer.train([outputs, *callbacks])
    return list(outputs.by_step.values()), np.asarray(trainer.variables["d/kernel"])


class Own(SyncReplicatedTrainer):
    """Like a user's `train_step`."""

    def train_step(self, inputs: dict[str, Any]) -> dict[str, Any]:
        variables = list(self.trainable.values())
        with tf.GradientTape() as tape:
            net = self.build(inputs, True)
            loss = net["loss"] + self.weight_decay_loss()
        gradients = self.gradients(tape, loss, variables)
        self.apply_gradients(list(zip(gradients, variables, strict=True)), loss=loss)
        return {"loss": net["loss"], "label": net["label"], "learning_rate": self.optimizer.learning_rate}


DIVIDED = {
    "two micro-batches": lambda **m: SimpleTrainer(masked(model__accumulate_steps=2, **m)),
    "two micro-batches with XLA": lambda **m: DIVIDED["two micro-batches"](model__jit_compile=True, **m),
    "two towers": lambda **m: SyncReplicatedTrainer(masked(**m), "cpu:2"),
    "two towers, one copy": lambda **m: SyncParameterServerTrainer(masked(**m), "cpu:2"),
    "a train_step": lambda **m: Own(masked(**m), "cpu:2"),
}


@pytest.mark.parametrize("kind", DIVIDED)
def test_masked_loss_does_not_depend_on_the_division(kind: str) -> None:
    more = {"model.weight_decay.value": 0.3}
    wanted, kernel = trained(SimpleTrainer(masked(**more)))
    watched: list[tuple[float, ...]] = []
    watching = ProcessTensors(["loss", "label", "loss_weight"], lambda *values: watched.append(values))
    found, other = trained(DIVIDED[kind](**more), watching.every(steps=1))
    assert [tuple(map(float, values)) for values in watched] == [(row["loss"], row["label"], 5.0) for row in found]
    assert wanted[0]["loss"] == found[0]["loss"] == 17.0
    assert wanted[0]["label"] == pytest.approx(13 / 5) == found[0]["label"]
    assert [row["loss"] for row in found] == pytest.approx([row["loss"] for row in wanted])
    np.testing.assert_allclose(other, kernel, rtol=1e-6)
    assert "loss_weight" not in found[0] and found[0]["learning_rate"] == np.float32(0.1)


def squares(outputs: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(outputs**2)  # Keras divides it by the number of examples


def test_eight_parts_with_layer_losses() -> None:
    """Weights do not apply to the losses of layers and weight decay."""
    random = np.random.default_rng(1)
    y, mask = random.normal(size=(8, 5)).astype(np.float32), random.integers(0, 2, (8, 5)).astype(np.float32)
    mask[2:4] = 0  # the second part has no weight, although its loss is 0 / 0
    more: dict[str, Any] = {"y": y, "mask": mask, "model.weight_decay.value": 0.3, "model.weight_decay.l1": 0.1}
    more["regularizer"] = squares
    wanted, kernel = trained(SimpleTrainer(masked(**more)))
    assert wanted[1]["loss_layers"] > 0 and wanted[1]["loss_l2"] > 0
    trainers = [
        SyncReplicatedTrainer(masked(**more, model__accumulate_steps=2), "cpu:2"),
        SyncReplicatedTrainer(masked(**more), "cpu:4"),
    ]
    for trainer in trainers:
        found, other = trained(trainer)
        for one, two in zip(found, wanted, strict=True):
            assert one.keys() == two.keys() and one == pytest.approx(two, rel=1e-5)
        np.testing.assert_allclose(other, kernel, rtol=1e-5)


@pytest.mark.parametrize("kind", ["one part", "two micro-batches with XLA", "two towers", "a train_step"])
def test_batch_with_weight_zero_only_decays(kind: str) -> None:
    trainers: dict[str, Any] = {**DIVIDED, "one part": lambda **m: SimpleTrainer(masked(**m))}
    mask = np.zeros_like(MASK)
    found, kernel = trained(trainers[kind](mask=mask))
    assert np.isnan([row[name] for row in found for name in ("loss", "label")]).all()  # there is no mean
    assert not kernel.any() and found[0]["learning_rate"] == np.float32(0.1)


def test_negative_weight_is_an_error() -> None:
    mask = -np.ones_like(MASK)
    with pytest.raises(NonFiniteError, match="loss"):
        SimpleTrainer(masked(mask=mask)).train([StopOnNaN()])
    with pytest.raises(ModelError, match="loss_weight"):
        SimpleTrainer(masked(mask=mask)).evaluate("vld")


@pytest.mark.parametrize(("batch_size", "towers"), [(1, 1), (2, 2)])
def test_validation_batches_are_weighted(batch_size: int, towers: int) -> None:
    trainer = SyncReplicatedTrainer(masked(batch_size, **{"model.num_steps": 1}), f"cpu:{towers}")
    assert trainer.evaluate("vld") == {"loss": 17.0, "label": pytest.approx(13 / 5)}
    runner = InferenceRunner("vld", ScalarStats(["loss", "y"]), prefix="own")
    measured: dict[str, float] = {}

    class Before(Callback):
        def before_train(self) -> None:
            runner.trigger()
            measured.update({name: self.trainer.monitors.latest(f"own/{name}") for name in ("loss", "y")})

    trainer.train([runner.every(steps=1), Before()])
    assert measured == {"loss": 17.0, "y": 5.0}


def test_validation_with_weight_zero() -> None:
    trainer = SimpleTrainer(masked(1, mask=np.array([[0, 0, 0, 0], [1, 0, 0, 0]], np.float32)))
    found = trainer.evaluate("vld")
    assert found is not None and found["loss"] == 81.0
    with pytest.raises(DataError, match="loss_weight"):
        trainer.evaluate("vld", 1)


def graphs(names: tuple[str, str], weight: bool) -> Any:
    """Two batches: two graphs with eight nodes, whose loss is 0.5, and two with two, whose loss is 2."""

    def datasets() -> dict[str, tf.data.Dataset]:
        nodes, y = names

        def batches() -> Any:
            for number, loss in ((8, 0.5), (2, 2.0)):
                yield {nodes: np.full((number, 1), loss, np.float32), y: np.zeros((2, 1), np.float32)}

        spec = {name: tf.TensorSpec([None, 1]) for name in names}
        return dict.fromkeys(("trn", "vld"), tf.data.Dataset.from_generator(batches, output_signature=spec))

    def build(inputs: dict[str, tf.Tensor], train_phase: bool) -> dict[str, tf.Tensor]:
        rate = keras.layers.Dense(1, name="d", kernel_initializer="zeros")(inputs[names[0]])
        found = {"loss": tf.reduce_mean(inputs[names[0]]) + tf.reduce_mean(rate)}
        return {**found, "loss_weight": tf.shape(inputs[names[0]])[0]} if weight else found

    return tiny_model(build=build, datasets=datasets, model__batch_size=2)


@pytest.mark.parametrize(("weight", "wanted"), [(False, 1.25), (True, 0.8)])
@pytest.mark.parametrize("names", [("nodes", "y"), ("z", "y")])
def test_batches_with_several_sizes_count_equally(names: tuple[str, str], weight: bool, wanted: float) -> None:
    trainer = SimpleTrainer(graphs(names, weight))
    assert trainer.evaluate("vld") == {"loss": pytest.approx(wanted)}


def test_means_over_many_batches_are_exact() -> None:
    """In float32 it is 0.0998."""

    def datasets() -> dict[str, tf.data.Dataset]:
        one = tf.data.Dataset.from_tensors({"x": tf.fill([1, 1], 0.1)})
        return {"trn": one, "vld": one.repeat(20_000)}

    def build(inputs: dict[str, tf.Tensor], train_phase: bool) -> dict[str, tf.Tensor]:
        keras.layers.Dense(1, name="d")(inputs["x"])
        return {"loss": tf.reduce_mean(inputs["x"])}

    found = tiny_trainer(build=build, datasets=datasets, model__batch_size=1).evaluate("vld")
    assert found is not None and found["loss"] == pytest.approx(0.1, abs=1e-7)


@pytest.mark.parametrize(
    ("make", "size", "outcome"),
    [
        (lambda d: d.batch(4, drop_remainder=True), 64, "error"),
        (lambda d: d.batch(8), 4, "error"),
        (lambda d: d.batch(8).repeat(), 4, "error"),
        (lambda d: d.batch(4).repeat(), 64, "WARNING"),
        (lambda d: d.batch(4).filter(lambda b: True), 64, "WARNING"),
        (lambda d: d.batch(8).filter(lambda b: True), 4, "error"),
        (lambda d: d.batch(8), 8, ""),
        (lambda d: d.batch(64), 64, ""),
    ],
)
def test_batch_size_of_the_config(make: Any, size: int, outcome: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model(datasets=lambda: {"trn": make(tf.data.Dataset.from_tensor_slices(tiny_arrays(20)))})
    model.config["model.batch_size"] = size
    if outcome == "error":
        with pytest.raises(ConfigError, match=rf"model.batch_size is {size}.*'trn' have [48] examples"):
            SimpleTrainer(model)
        return
    SimpleTrainer(model)
    assert ("model.batch_size is" in capsys.readouterr().out) == bool(outcome)


def test_synchronized_statistics_with_weights_are_refused() -> None:
    def build(inputs: Any, train_phase: bool) -> dict[str, Any]:
        x = keras.layers.BatchNormalization(synchronized=True, name="bn")(inputs["x"], training=train_phase)
        return {"loss": tf.reduce_mean(keras.layers.Dense(1)(x)), "loss_weight": tf.constant(2.0)}

    with pytest.raises(ModelError, match=r"bn is a BatchNormalization\(synchronized=True\)"):
        SyncReplicatedTrainer(tiny_model(build=build), "cpu:2")
