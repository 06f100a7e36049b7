"""A fresh run of a model whose layers outlast a trainer begins where the first one began."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import Config, KerasTrainer, SimpleTrainer, SyncReplicatedTrainer
from prototrain.callbacks import SaveOnExit
from prototrain.errors import ConfigError, ModelError
from prototrain.launch import launch
from tests.tiny import tiny_arrays, tiny_config, tiny_datasets

L = keras.layers


class Net:
    """Layers that are made in the constructor: one that is built, one that is not, a network, and a variable."""

    def __init__(self, **config: Any) -> None:
        self.config = tiny_config(**config)
        self.built = L.Dense(4, name="built")
        self.built.build([None, 4])
        self.unbuilt = L.Dense(4, name="unbuilt")
        layers = [L.BatchNormalization(name="bn"), L.Dropout(0.3, name="dropout"), L.Dense(2, name="dense")]
        self.network = keras.Sequential(layers, name="network")
        self.scale = tf.Variable(1.5, name="scale")

    def datasets(self) -> dict[str, tf.data.Dataset]:
        return tiny_datasets()

    def build(self, inputs: Any, train_phase: bool) -> dict[str, Any]:
        x = self.unbuilt(self.built(inputs["x"])) * self.scale
        logits = self.network(x, training=train_phase)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=logits)
        return {"loss": tf.reduce_mean(losses), "logits": logits}


def values(trainer: SimpleTrainer) -> dict[str, Any]:
    return {name: np.array(tf.convert_to_tensor(v)) for name, v in trainer.variables.items()}


def trained(model: Any, make: Callable[..., Any] = SimpleTrainer, steps: int = 5, **options: Any) -> Any:
    trainer = make(model, **options)
    trainer.train(max_steps=steps)
    return trainer


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


@pytest.mark.parametrize(
    ("make", "options"),
    [(SimpleTrainer, {}), (SyncReplicatedTrainer, {"towers": "cpu:2"})],
    ids=["one tower", "two towers"],
)
def test_each_fresh_trainer_begins_where_the_first_one_began(make: Any, options: dict[str, Any]) -> None:
    model = Net()
    if make is not SimpleTrainer:
        model.scale = 1.5  # several towers take no variable that was made before
    first, second, third = (values(trained(model, make, **options)) for _ in range(3))
    assert_same(first, second)
    assert_same(second, third)


def test_a_fresh_launch_and_one_that_resumes(tmp_path: Path) -> None:
    model = Net(trainer__experiment_base_dir=str(tmp_path))
    first = values(launch(model, fresh=True, callbacks=[SaveOnExit()]))
    second = values(launch(model, fresh=True, callbacks=[SaveOnExit()]))
    assert_same(first, second)
    model.config["model.num_steps"] = 30
    resumed = values(launch(model, callbacks=[SaveOnExit()]))
    again = values(launch(model, fresh=True, callbacks=[SaveOnExit()]))
    assert_same(resumed, again)


def test_one_trainer_is_trained_further() -> None:
    trainer = trained(Net(), steps=3)
    trainer.train(max_steps=6)
    whole = trained(Net(), steps=6)
    assert trainer.global_step == 6
    moved = [name for name in values(whole) if name.endswith("kernel")]
    before = values(trained(Net(), steps=3))
    assert all(not np.array_equal(values(trainer)[name], before[name]) for name in moved)


@pytest.mark.parametrize("how", ["into the layer", "into the trainer"])
def test_weights_that_are_loaded_in_between_stay(how: str) -> None:
    model = Net()
    trained(model)
    weights = [np.full([4, 4], 0.25, np.float32), np.full([4], 0.5, np.float32)]
    trainer = SimpleTrainer(model)
    if how == "into the layer":
        model.built.set_weights(weights)
    else:
        trainer.load_weights({"built/kernel": weights[0], "built/bias": weights[1]})
    trainer.train(max_steps=0)
    np.testing.assert_array_equal(model.built.get_weights()[0], weights[0])
    after = values(trained(model))
    assert_same(after, values(trained(model)))  # which begins with the weights that were loaded


def test_a_trainer_that_only_evaluates_leaves_what_was_trained() -> None:
    model = Net()
    first = trained(model)
    measured = first.evaluate("vld")
    assert SimpleTrainer(model).evaluate("vld")["loss"] == pytest.approx(measured["loss"])


class Lazy(Net):
    """Makes a layer in the first call of `build` and keeps it."""

    kept: Any = None

    def build(self, inputs: Any, train_phase: bool) -> dict[str, Any]:
        if self.kept is None:
            self.kept = L.Dense(2, name="kept")
        logits = self.kept(inputs["x"])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=logits)
        return {"loss": tf.reduce_mean(losses)}


def test_what_cannot_restore_first_values_is_refused(tmp_path: Path) -> None:
    model = Lazy(trainer__experiment_base_dir=str(tmp_path))
    launch(model, callbacks=[SaveOnExit()])
    model.config["model.num_steps"] = 25
    assert launch(model, callbacks=[SaveOnExit()]).global_step == 25  # goes on from the checkpoint
    with pytest.raises(ModelError, match="earlier trainer of this process has trained kept/"):
        launch(model, fresh=True, callbacks=[SaveOnExit()])
    with pytest.raises(ModelError, match="earlier trainer of this process has trained kept/"):
        SimpleTrainer(model, experiment=tmp_path / "other").train([SaveOnExit()])
    assert [path for path in (tmp_path / "other").rglob("*") if path.is_file() and path.name != ".lock"] == []


def test_a_used_optimizer_is_refused() -> None:
    model = Net()
    model.config = Config({**tiny_config(), "model.optimizer.method": keras.optimizers.Adam(0.01)})
    trained(model)
    with pytest.raises(ConfigError, match="already built by another trainer; give a factory"):
        trained(model)


def test_a_keras_trainer_goes_on_as_fit_does() -> None:
    model = keras.Sequential([keras.Input([4]), L.Dense(1)])
    model.compile("sgd", "mse")
    data = tiny_arrays()["x"], tiny_arrays()["y"]
    KerasTrainer(model, data, batch_size=8).train(max_steps=3)
    before = model.get_weights()[0]
    KerasTrainer(model, data, batch_size=8).train(max_steps=0)
    np.testing.assert_array_equal(before, model.get_weights()[0])
