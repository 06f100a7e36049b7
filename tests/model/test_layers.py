"""Layers that `build` creates behave as in Keras; the choice of variables and of scalars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import Config, SimpleTrainer, SyncReplicatedTrainer
from prototrain.callbacks import CallbackFactory, SaveOnExit
from prototrain.errors import ModelError
from prototrain.gradient_processors import ScaleGradient
from prototrain.model.built import BuiltModel
from prototrain.model.net import scalars
from prototrain.model.variables import select, variable_table
from prototrain.trainers.replicated import SyncParameterServerTrainer
from tests.checkpoint.test_weights import NET, variables
from tests.tiny import classifier, tiny_arrays, tiny_build, tiny_model, tiny_trainer, values, weights

L = keras.layers
Network = Callable[[Any, bool], Any]


def moved(trainer: SimpleTrainer, steps: int = 5) -> set[str]:
    """The names of the variables that some steps change."""
    before = weights(trainer)
    trainer.train(max_steps=trainer.global_step + steps)
    return {name for name, value in weights(trainer).items() if not np.array_equal(value, before[name])}


def body_and_head(x: Any, training: bool) -> Any:
    body = keras.Sequential([L.Dense(6, name="fc"), L.BatchNormalization(name="bn"), L.ReLU()], name="body")
    body.trainable = False
    return L.Dense(2, name="head")(body(x, training=training))


HEAD, BODY = {"head/kernel", "head/bias"}, {"body/fc/kernel", "body/fc/bias", "body/bn/gamma", "body/bn/beta"}


def test_frozen_layer_has_no_updates_decay_or_slots() -> None:
    trainer = tiny_trainer(build=classifier(body_and_head), model__weight_decay__value=0.1)
    assert set(trainer.trainable) == set(trainer.decayed) == HEAD
    assert not [name for name in trainer.state if name.startswith("optimizer/body")]
    assert moved(trainer) == HEAD
    table = str(variable_table(trainer.variables, trainer.trainable, trainer.decayed))
    (row,) = [line for line in table.splitlines() if line.startswith("head/kernel")]
    assert row.split()[-2:] == ["yes", "yes"]


@pytest.mark.parametrize("epochs", [1, 3])  # found at the end of the run, or before the next epoch
def test_layers_unfrozen_after_the_trainer_was_made_are_an_error(epochs: int) -> None:
    def unfreeze(callback: CallbackFactory) -> None:
        trainer.keras_layers["body"].trainable = True

    trainer = tiny_trainer(build=classifier(body_and_head))
    changed = "body/bn/beta.* has changed since the trainer was created"
    with pytest.raises(ModelError, match=changed):
        trainer.train([CallbackFactory(trigger=unfreeze).every(steps=2)], steps_per_epoch=5, max_epoch=epochs)
    assert trainer.global_step == 5
    with pytest.raises(ModelError, match=changed):
        trainer.train(max_steps=9)

    class Own(SimpleTrainer):
        def train_step(self, inputs: Any) -> Any:
            return super().train_step(inputs)

    own = Own(tiny_model(build=classifier(body_and_head)))
    own.train(max_steps=1)
    own.keras_layers["body"].trainable = True
    with pytest.raises(ModelError, match=changed):
        own.train(max_steps=2)


def regularized(x: Any, training: bool) -> Any:
    hidden = L.Dense(6, kernel_regularizer=keras.regularizers.L2(0.1), activity_regularizer="l1", name="a")(x)
    return L.Dense(2, trainable=False, kernel_regularizer="l2", name="b")(hidden)


def test_layer_losses_are_minimized_and_reported() -> None:
    trainer = SyncReplicatedTrainer(tiny_model(build=classifier(regularized)), ["CPU:0", "CPU:1"])
    start = weights(trainer)
    trainer.train(max_steps=1)
    hidden = trainer.data.first_batch["x"] @ start["a/kernel"]
    expected = 0.1 * np.sum(start["a/kernel"] ** 2) + 0.01 * np.sum(np.abs(hidden)) / 8
    assert trainer.outputs["loss_layers"] == pytest.approx(expected, rel=1e-4)
    assert trainer.outputs["loss_total"] == pytest.approx(trainer.outputs["loss"] + expected, rel=1e-4)


def test_losses_added_by_build_count_once() -> None:
    def build(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        model = keras.Sequential([L.Dense(6, activity_regularizer="l1", name="a"), L.Dense(2, name="b")], name="m")
        net = classifier(lambda x, training: model(x))(inputs, train_phase)
        return {**net, "loss": net["loss"] + tf.add_n(model.losses)}

    trainer = tiny_trainer(build=build)
    trainer.train(max_steps=1)
    assert "loss_layers" not in trainer.outputs


def pretrained(x: Any, training: bool) -> Any:
    fc, bn = L.Dense(4, name="fc"), L.BatchNormalization(name="bn")
    hidden = bn(fc(x), training=training)
    fc.set_weights([np.eye(4), np.arange(4.0)])
    bn.moving_mean.assign(np.full(4, 7.0))
    return L.Dense(2, name="out")(hidden)


def test_weights_loaded_in_build_are_applied_once() -> None:
    trainer = tiny_trainer(build=classifier(pretrained))
    np.testing.assert_array_equal(trainer.variables["fc/kernel"], np.eye(4))
    np.testing.assert_array_equal(trainer.variables["bn/moving_mean"], np.full(4, 7.0))
    trainer.evaluate("vld")
    assert {"fc/kernel", "bn/moving_mean"} <= moved(trainer)
    changed = trainer.variables["fc/kernel"].numpy()
    trainer.evaluate("vld")
    np.testing.assert_array_equal(trainer.variables["fc/kernel"], changed)


def test_weight_files_are_read_once(tmp_path: Path) -> None:
    def make() -> keras.Model:
        return keras.Sequential([keras.Input((4,)), L.Dense(6, name="fc"), L.Dense(2, name="out")], name="net")

    first = make()
    first.save_weights(tmp_path / "net.weights.h5")
    first.save(tmp_path / "net.keras")

    def from_weights(x: Any, training: bool) -> Any:
        model = make()
        model.load_weights(tmp_path / "net.weights.h5")
        return model(x)

    def from_model(x: Any, training: bool) -> Any:
        return keras.models.load_model(tmp_path / "net.keras", compile=False)(x)

    for network in (from_weights, from_model):
        trainer = tiny_trainer(build=classifier(network))
        np.testing.assert_array_equal(trainer.keras_layers["net"].get_layer("fc").kernel, first.layers[0].kernel)
        assert len(moved(trainer)) == 4


def assigns_a_layer(x: Any, training: bool) -> Any:
    layer = L.Dense(2, name="fc")
    logits = layer(x)
    layer.kernel.assign(layer.kernel / tf.norm(layer.kernel))
    return logits


class Judge(L.Layer):  # type: ignore[misc]
    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.inner = L.Dense(2, name="inner")

    def call(self, x: Any) -> Any:
        return self.inner(x)


def twice_a_layer_with_children(x: Any, training: bool) -> Any:
    return Judge(name="judge")(x) + Judge(name="judge")(x + 1.0)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (assigns_a_layer, r"assigns a computed value to the trainable variable fc/kernel, .* in every step"),
        (twice_a_layer_with_children, r"two layers named 'judge'"),
        (
            lambda x, training: L.Dense(2, name="line")(x) + L.Dense(2, name="line")(x + 1.0),
            r"two layers named 'line', .* make the layer once and call it twice, otherwise give .* another name",
        ),
    ],
)
def test_errors(network: Network, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        tiny_trainer(build=classifier(network))


def test_constructor_keeps_existing_layers_unchanged() -> None:
    bn, drop = L.BatchNormalization(name="bn"), L.Dropout(0.5, seed=3)
    bn.build((None, 4))
    bn.moving_mean.assign(np.full(4, 7.0))
    tiny_trainer(build=classifier(lambda x, on: L.Dense(2, name="out")(drop(bn(x, training=on), training=on))))
    np.testing.assert_array_equal(bn.moving_mean, np.full(4, 7.0))
    np.testing.assert_array_equal(drop.seed_generator.state, [3, 0])


def test_second_trainer_uses_the_same_names(tmp_path: Path) -> None:
    before = L.Dense(4)
    network = classifier(lambda x, training: L.Dense(2)(L.Dense(4)(before(x))))
    names = []
    for steps in (3, 5):
        trainer = tiny_trainer(tmp_path / "e", build=network)
        names.append([name for name, variable in trainer.variables.items() if variable is before.kernel.value])
        trainer.train([SaveOnExit()], max_steps=steps)
    assert names[0] == names[1] != []


@pytest.mark.parametrize(("make", "inline"), [(SyncReplicatedTrainer, False), (SyncParameterServerTrainer, True)])
def test_random_numbers_differ_between_towers(make: Any, inline: bool) -> None:
    kept = L.Dropout(0.5, seed=1, name="drop")

    def build(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        drop = L.Dropout(0.5, seed=1, name="drop") if inline else kept
        net = classifier(lambda x, training: L.Dense(2, name="out")(x))(inputs, train_phase)
        mask = tf.reduce_sum(drop(tf.ones([64]), training=True) * tf.range(64.0))
        return {**net, "mask": mask, "mask_squared": mask**2}

    trainer = make(tiny_model(build=build), ["CPU:0", "CPU:1"])
    trainer.train(max_steps=2)
    seen = trainer.outputs
    assert seen["mask_squared"] > seen["mask"] ** 2 + 1e-3, "the mean over towers that agree"


def variables_of_one_name(x: Any, training: bool) -> Any:
    for _ in range(2):
        x = x @ tf.Variable(lambda: tf.random.normal([4, 4])) + tf.Variable(tf.zeros([4]), name="shift")
    return x[:, :2]


def test_slots_of_variables_with_equal_names(tmp_path: Path) -> None:
    whole = tiny_trainer(build=classifier(variables_of_one_name))
    whole.train(max_steps=5)
    for steps in (3, 5):
        resumed = tiny_trainer(tmp_path / "e", build=classifier(variables_of_one_name))
        resumed.train([SaveOnExit()], max_steps=steps)
    assert values(whole) == values(resumed)
    assert {"optimizer/shift_0_momentum", "optimizer/shift_1_0_momentum"} <= resumed.state.keys()


def scaled(x: Any, training: bool) -> Any:
    return L.Lambda(lambda value: value * (3.0 if training else 1.0))(x)


def shifted(x: Any, training: bool) -> Any:
    mean, zero = tf.reduce_mean(x), tf.zeros([])
    return L.Lambda(lambda value: value - mean + zero)(x + mean)


def scaled_within(x: Any, training: bool) -> Any:
    given = keras.Input([4])
    return keras.Model(given, L.Rescaling(1.0)(given * 3.0 if training else given))(x)


@pytest.mark.parametrize("change", [scaled, shifted, scaled_within])
def test_layers_are_matched_by_arguments(change: Network) -> None:
    trainer = tiny_trainer(build=classifier(lambda x, training: L.Dense(2, name="out")(change(x, training))))
    x, kernel = tiny_arrays()["x"][8:], weights(trainer)["out/kernel"]
    (logits,) = trainer.get_predictor(["x"], ["logits"])(x)
    np.testing.assert_allclose(logits, x @ kernel, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("in_training", [True, False])
def test_sequential_add_must_be_the_same_in_all_calls(in_training: bool) -> None:
    def network(x: Any, training: bool) -> Any:
        model = keras.Sequential()
        model.add(L.Dense(2))
        if training is in_training:
            model.add(L.Rescaling(3.0))
        return model(x)

    with pytest.raises(ModelError, match=r"not add the same layers .* as a list"):
        tiny_trainer(build=classifier(network)).evaluate("vld")


def test_lookup_tables_are_created_once() -> None:
    made: list[Any] = []

    def build(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        found = []
        for words in (["a", "b"], ["b", "a"]) if train_phase else (["b", "a"],):
            contents = tf.lookup.KeyValueTensorInitializer(words, tf.constant([1.0, 2.0]))
            table = tf.lookup.StaticHashTable(contents, 0.0)
            made.append(table)
            found.append(table.lookup(tf.constant("a")))
        scale = tf.Variable(lambda: tf.ones([]), name="scale")
        return {"loss": tf.reduce_mean(inputs["x"]) * scale * found[0], "of": found[-1]}

    built = BuiltModel(tiny_model(build=build))
    assert made[0] is made[2] and made[1] is made[3] and made[0] is not made[1]
    batch = built.data.first_batch
    assert float(built.build(batch, False)["of"]) == 2.0 and made[-1] is made[1]


@pytest.mark.parametrize(
    ("filters", "chosen"),
    [
        ({}, ["fc0/kernel", "fc0/bias", "logits/kernel"]),
        ({"filter_regex": "fc0"}, ["fc0/kernel", "fc0/bias"]),
        ({"filter_regex": ".*kernel"}, ["fc0/kernel", "logits/kernel"]),
        ({"filter_regex": "kernel|logits"}, ["logits/kernel"]),  # from the start of the name, as re.match
        ({"filter_fn": lambda variable: len(variable.shape) == 1}, ["fc0/bias"]),
        ({"filter_fn": lambda variable: len(variable.shape) == 2, "filter_regex": "fc0"}, ["fc0/kernel"]),
    ],
)
def test_select(filters: dict[str, Any], chosen: list[str]) -> None:
    config = Config({f"model.trainable_variables.{name}": value for name, value in filters.items()})
    assert list(select(variables(**NET), config, "model.trainable_variables")) == chosen


def test_only_trained_variables_decay() -> None:
    trainer = tiny_trainer(
        model__trainable_variables__filter_regex="fc0|logits",
        model__weight_decay__value=0.1,
        model__weight_decay__filter_regex=".*(kernel|gamma)",
    )
    assert list(trainer.trainable) == ["fc0/kernel", "fc0/bias", "logits/kernel", "logits/bias"]
    assert list(trainer.decayed) == ["fc0/kernel", "logits/kernel"]


def test_scalars() -> None:
    found = scalars(
        {
            "loss": tf.constant(1.0),
            "variable": keras.Variable(2.0),
            "count": tf.Variable(3),
            "vector": keras.Variable([1.0]),
            "text": tf.constant("x"),
            "ragged": tf.ragged.constant([[1.0]]),
            "array": np.array(1.0),
            "number": 4.0,
            "classes": 10,
            "numpy_number": np.float32(5.0),
            "flag": True,
        }
    )
    expected = {"loss": 1.0, "variable": 2.0, "count": 3.0, "number": 4.0, "numpy_number": 5.0}
    assert {name: float(value) for name, value in found.items()} == expected


@pytest.mark.parametrize("name", ["learning_rate", "loss_total"])
def test_reserved_scalar_names(name: str) -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        return {**tiny_build(inputs, train_phase), name: tf.constant(5.0)}

    with pytest.raises(ModelError, match=f"scalar '{name}'"):
        tiny_trainer(build=build)


def test_reserved_names_of_other_tensors() -> None:
    trainer = tiny_trainer(build=lambda *given: {**tiny_build(*given), "learning_rate": tf.ones([2])})
    trainer.train(max_steps=1)
    assert trainer.outputs["learning_rate"] == pytest.approx(0.01)


class Blocks(keras.Model):  # type: ignore[misc]
    """Layers that are built when they are called, one of them without a name."""

    def __init__(self) -> None:
        super().__init__(name="net")
        self.parts = [L.Dense(4, name="enc"), L.Dense(4), L.Dense(2, name="out")]

    def call(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x


@pytest.mark.parametrize("make", [SimpleTrainer, lambda model: SyncReplicatedTrainer(model, "cpu:2")])
def test_variables_of_layers_inside_of_layers(make: Any) -> None:
    L.Dense(1)  # so that automatic names have numbers

    def network(x: Any, training: bool) -> Any:
        with tf.name_scope("left"):
            return Blocks()(x)

    trainer = make(tiny_model(build=classifier(network)))
    layers = ("left/net/enc", "left/net/dense", "left/net/out")
    assert list(trainer.variables) == [f"{layer}/{kind}" for layer in layers for kind in ("kernel", "bias")]
    trainer.gradient_processors.append(ScaleGradient({"left/net/out/.*": 0.0}))
    assert moved(trainer) == {name for name in trainer.variables if "/out/" not in name}


def test_normalization_computes_with_loaded_statistics(tmp_path: Path) -> None:
    def trainer(scale: float, directory: Path | None = None) -> SimpleTrainer:
        def network(x: Any, training: bool) -> Any:
            normalization = L.Normalization(name="norm")
            normalization.adapt(tiny_arrays()["x"] * scale)
            return L.Dense(2, name="out")(normalization(x))

        return tiny_trainer(directory, build=classifier(network))

    first = trainer(1.0, tmp_path)
    first.train([SaveOnExit()], max_steps=3)
    loaded, resumed = trainer(100.0), trainer(100.0, tmp_path)
    assert loaded.evaluate("vld") != first.evaluate("vld")  # traces the evaluation
    loaded.load_weights(tmp_path)
    resumed.train(max_steps=3)
    assert loaded.evaluate("vld") == resumed.evaluate("vld") == first.evaluate("vld")


def test_statistics_of_a_layer_that_existed_before_are_saved() -> None:
    normalization = L.Normalization(name="norm")
    normalization.adapt(tiny_arrays()["x"])
    build = classifier(lambda x, training: L.Dense(2, name="out")(normalization(x)))
    names = {"out/kernel", "out/bias", "norm/mean", "norm/variance", "norm/count"}
    assert tiny_trainer(build=build).variables.keys() == names
    assert SyncReplicatedTrainer(tiny_model(build=build), "cpu:2").variables.keys() == names


def test_layers_that_assign_floats_in_mixed_precision() -> None:
    def network(x: Any, training: bool) -> Any:
        return L.SpectralNormalization(L.Dense(2, name="out"), name="norm")(x, training=training)

    trainer = tiny_trainer(build=classifier(network), model__mixed_precision="mixed_bfloat16")
    assert "norm/vector_u" in moved(trainer)


def test_evaluations_keep_the_state_of_layers_and_count_in_variables() -> None:
    batches = []

    def network(x: Any, training: bool) -> Any:
        batches.append(tf.Variable(0, trainable=False, name="batches"))
        batches[-1].assign_add(1)
        return L.Dense(2, name="out")(L.LSTM(3, stateful=True, name="lstm")(tf.ensure_shape(x, [4, 4])[:, :, None]))

    def datasets() -> dict[str, tf.data.Dataset]:
        return dict.fromkeys(("trn", "vld"), tf.data.Dataset.from_tensor_slices(tiny_arrays()).batch(4))

    trainer = tiny_trainer(build=classifier(network), datasets=datasets, model__batch_size=4)
    trainer.train(max_steps=3)
    before = values(trainer)
    trainer.evaluate("vld")
    changed = {name for name, value in values(trainer).items() if value != before[name]}
    assert changed == {"batches"} and weights(trainer)["batches"] == 3 + 10


class Pretrained(L.Layer):  # type: ignore[misc]
    """A layer with a head that is not used."""

    def build(self, shape: Any) -> None:
        self.body = self.add_weight(shape=(4, 2), name="body")
        self.head = self.add_weight(shape=(2, 9), name="head")

    def call(self, x: Any) -> Any:
        return x @ self.body


@pytest.mark.parametrize("make", [SimpleTrainer, lambda model: SyncReplicatedTrainer(model, "cpu:2")])
def test_unused_weights_of_layers_are_saved_but_not_trained(make: Any) -> None:
    layer = Pretrained(name="net")
    layer.build((None, 4))
    trainer = make(tiny_model(build=classifier(lambda x, training: layer(x)), model__weight_decay__value=0.1))
    assert list(trainer.variables) == ["net/body", "net/head"] and list(trainer.decayed) == ["net/body"]
    assert moved(trainer) == {"net/body"}


def test_trainers_with_the_same_layers_have_their_own_names() -> None:
    body, head = L.Dense(4, name="body"), L.Dense(2, name="head")
    trainer = tiny_trainer(build=classifier(lambda x, training: head(body(x))))
    tiny_trainer(build=classifier(lambda x, training: head(body(L.Dense(4, name="body")(x)))))
    trainer.gradient_processors.append(ScaleGradient({"body/kernel": 0.0}))
    assert moved(trainer) == {"body/bias", "head/kernel", "head/bias"}


def test_adapters_are_added_once() -> None:
    def network(x: Any, training: bool) -> Any:
        layer = L.Dense(2, name="out")
        layer.build(x.shape)
        layer.enable_lora(1)
        return layer(x)

    trainer = tiny_trainer(build=classifier(network))
    assert moved(trainer) == {"out/bias", "out/lora_kernel_a", "out/lora_kernel_b"}


def test_lambda_layers_of_a_loop() -> None:
    def build(inputs: Any, train_phase: bool) -> dict[str, Any]:
        x = inputs["x"]
        for number in range(1, 4):
            x = keras.layers.Lambda(lambda z: z + number)(x)  # noqa: B023
        loss = tf.reduce_mean(keras.layers.Dense(1)(x) ** 2)
        return {"loss": loss, "added": tf.reduce_mean(x - inputs["x"])}

    trainer = SimpleTrainer(tiny_model(build=build))
    trainer.train(max_steps=2)
    assert trainer.outputs["added"] == pytest.approx(6.0, abs=1e-4)
    assert trainer.evaluate("vld")["added"] == pytest.approx(6.0, abs=1e-4)
