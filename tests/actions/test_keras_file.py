"""The network as a `.keras` file."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import SimpleTrainer
from prototrain.actions import export
from prototrain.callbacks import ModelSaver
from prototrain.errors import ExperimentError, ModelError
from prototrain.model import ModelDict
from tests.actions.conftest import model_in
from tests.tiny import tiny_arrays, tiny_build

KERAS = Namespace(checkpoint=None, format="keras")


def build(inputs: Any, train_phase: bool) -> ModelDict:
    layers = [keras.layers.Dense(6, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(2)]
    net = ModelDict(logits=keras.Sequential(layers, name="net")(inputs["x"], training=train_phase))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=net.logits)
    net.loss = tf.reduce_mean(losses)
    return net


def test_a_network_that_is_one_model_is_written_as_it_was_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_in(tmp_path, build=build)
    trainer = SimpleTrainer(model, experiment=tmp_path / "tiny")
    trainer.train([ModelSaver()], max_steps=5)
    export.run(model, KERAS)
    written = tmp_path / "tiny" / "exported" / "5.keras"
    assert capsys.readouterr().out.endswith(f"exported to {written}\n")
    x = tiny_arrays()["x"]
    here = trainer.keras_layers["net"](x)
    np.testing.assert_allclose(keras.models.load_model(written)(x), here, rtol=1e-6)
    with pytest.raises(ExperimentError, match=r"5.keras exists"):
        export.run(model, KERAS)
    assert [path.name for path in written.parent.iterdir()] == ["5.keras"]


def test_layers_beside_each_other_are_no_keras_model(tmp_path: Path) -> None:
    model = model_in(tmp_path, build=tiny_build)
    SimpleTrainer(model, experiment=tmp_path / "tiny").train([ModelSaver()], max_steps=1)
    with pytest.raises(ModelError, match=r"not one Keras model: build\(\) uses fc0, bn0, dropout, logits; put all"):
        export.run(model, KERAS)
