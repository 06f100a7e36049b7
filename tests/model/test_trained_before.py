"""Layers used by several trainers: a fresh run must not continue from trained weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import KerasTrainer, SimpleTrainer, SyncReplicatedTrainer
from prototrain.callbacks import SaveOnExit
from prototrain.errors import ModelError
from prototrain.launch import launch
from tests.tiny import classifier, tiny_arrays, tiny_config, tiny_datasets, values

L = keras.layers
REFUSED = r"earlier trainer of this process has trained .*make the layers in build\(\), or a new model"


class Net:
    """Layers that are made in the constructor, one of them frozen, and one that the first `build` makes and keeps."""

    def __init__(self, *, frozen: bool = False, **config: Any) -> None:
        self.config = tiny_config(**config)
        self.body = keras.Sequential([L.Dense(4, name="fc"), L.BatchNormalization(name="bn")], name="body")
        self.body.trainable = not frozen
        self.head: Any = None
        self.keeps_head = not frozen

    def datasets(self) -> dict[str, tf.data.Dataset]:
        return tiny_datasets()

    def build(self, inputs: Any, train_phase: bool) -> dict[str, Any]:
        head = self.head or L.Dense(2, name="head")
        self.head = head if self.keeps_head else None
        return classifier(lambda x, train_phase: head(self.body(x, training=train_phase)))(inputs, train_phase)


def trained(model: Any, make: Any = SimpleTrainer, steps: int = 3, **options: Any) -> Any:
    trainer = make(model, **options)
    trainer.train(max_steps=steps)
    return trainer


@pytest.mark.parametrize(("make", "options"), [(SimpleTrainer, {}), (SyncReplicatedTrainer, {"towers": "cpu:2"})])
def test_second_fresh_trainer_is_refused(make: Any, options: dict[str, Any], tmp_path: Path) -> None:
    model = Net()
    first = trained(model, make, **options)
    first.train(max_steps=5)  # the same trainer continues
    measured = first.evaluate("vld")
    with pytest.raises(ModelError, match=REFUSED):
        trained(model, make, experiment=tmp_path / "e", **options)
    assert [path for path in (tmp_path / "e").rglob("*") if path.is_file() and path.name != ".lock"] == []
    assert make(model, **options).evaluate("vld")["loss"] == pytest.approx(measured["loss"])  # which trains nothing


def test_resumed_launch_is_accepted(tmp_path: Path) -> None:
    model = Net(trainer__experiment_base_dir=str(tmp_path))
    launch(model, callbacks=[SaveOnExit()])
    model.config["model.num_steps"] = 25
    assert launch(model, callbacks=[SaveOnExit()]).global_step == 25
    with pytest.raises(ModelError, match=REFUSED):
        launch(model, fresh=True, callbacks=[SaveOnExit()])


def test_loaded_weights_are_accepted(tmp_path: Path) -> None:
    model = Net()
    first = trained(model)
    first.dump_weights(tmp_path / "trained.npz")
    again = SimpleTrainer(model)
    again.load_weights(tmp_path / "trained.npz")  # the same values: loading them is intended
    again.train(max_steps=1)
    with pytest.raises(ModelError, match=REFUSED):
        trained(model)


def test_new_and_frozen_layers_are_accepted() -> None:
    model = Net(frozen=True)
    assert values(trained(model)) == values(trained(model))


def test_keras_trainer_continues_as_fit() -> None:
    model = keras.Sequential([keras.Input([4]), L.Dense(1)])
    model.compile("sgd", "mse")
    data = tiny_arrays()["x"], tiny_arrays()["y"]
    KerasTrainer(model, data, batch_size=8).train(max_steps=3)
    before = model.get_weights()[0]
    KerasTrainer(model, data, batch_size=8).train(max_steps=0)
    np.testing.assert_array_equal(before, model.get_weights()[0])
