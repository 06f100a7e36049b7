"""The action `export`: an export in each format equals the model, or is not written."""

from __future__ import annotations

import gc
from argparse import Namespace
from functools import cache, partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import SimpleTrainer
from prototrain.actions import export, restore
from prototrain.actions.saved_model import ServedModel, compare
from prototrain.callbacks import ModelSaver
from prototrain.errors import ExperimentError, ModelError
from prototrain.model.built import BuiltModel
from tests.actions.conftest import model_in
from tests.tiny import tiny_arrays, tiny_build, tiny_model

WHAT = {"actions__export__inputs": ["x"], "actions__export__outputs": ["logits", "classes"]}


@cache
def table() -> tf.lookup.StaticHashTable:
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1], ["left", "right"]), "neither")


def build_more(inputs: Any, train_phase: bool) -> Any:
    """The tiny model with a text from a lookup table."""
    net = tiny_build(inputs, train_phase)
    net.classes = table().lookup(tf.argmax(net.logits, 1, output_type=tf.int32))
    return net


def run(
    base: Path, kind: str = "saved_model", *, checkpoint: str | None = None, build: Any = build_more, **model: Any
) -> None:
    export.run(model_in(base, build=build, **{**WHAT, **model}), Namespace(checkpoint=checkpoint, format=kind))


def left_behind(base: Path) -> set[str]:
    return {path.name for path in (base / "tiny").glob("exported/*")}


def test_saved_model(trained: SimpleTrainer, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exports moving averages, batch normalization, dropout, a lookup table and text; TensorFlow alone loads them."""
    table()
    gc.freeze()  # as in a run from the command line, after which the collector has lost the table
    run(base)
    printed = capsys.readouterr().out
    for words in ("moving averages", "x float32[None,4]", "logits float32[None,2], classes string[None]"):
        assert words in printed
    assert "on 8 and 1 examples, to the same bits" in printed and f"exported to {base}/tiny/exported/20\n" in printed

    serve = tf.saved_model.load(str(base / "tiny/exported/20")).signatures["serving_default"]
    x = tiny_arrays(13)["x"]
    found = serve(x=tf.constant(x))
    logits, classes = restore(model_in(base, build=build_more)).built.get_predictor(["x"], ["logits", "classes"])(x)
    np.testing.assert_array_equal(found["logits"], logits)
    assert found["classes"].numpy().tolist() == classes.tolist()
    with pytest.raises(ExperimentError, match="exported/20 exists; delete it"):
        run(base)


def test_keras_file_of_a_single_model(trained: SimpleTrainer, base: Path, tmp_path: Path) -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        layers = [keras.layers.Dense(6, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(2)]
        logits = keras.Sequential(layers, name="net")(inputs["x"], training=train_phase)
        return {"logits": logits, "loss": tf.reduce_mean(logits**2)}

    trainer = SimpleTrainer(model_in(tmp_path, build=build), experiment=tmp_path / "tiny")
    trainer.train([ModelSaver()], max_steps=5)
    run(tmp_path, "keras", build=build)
    x = tiny_arrays()["x"]
    loaded = keras.models.load_model(tmp_path / "tiny/exported/5.keras")
    np.testing.assert_allclose(loaded(x), trainer.keras_layers["net"](x), rtol=1e-6)
    with pytest.raises(ModelError, match=r"not one Keras model: build\(\) uses fc0, bn0, dropout, logits; put all"):
        run(base, "keras", build=tiny_build)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (lambda x: x + tf.random.uniform([4]), "what was exported is not the model: 'odd' differs by"),
        (lambda x: tf.numpy_function(np.abs, [x], tf.float32), "calls Python code"),
        (partial(tf.map_fn, lambda row: tf.py_function(tf.abs, [row], tf.float32)), "calls Python code"),
    ],
)
def test_exports_that_differ(output: Any, words: str, trained: SimpleTrainer, base: Path) -> None:
    """Nothing is left of an export that is not the model, or that would be another model in another process."""

    def build(inputs: Any, train_phase: bool) -> Any:
        net = tiny_build(inputs, train_phase)
        net.odd = output(inputs["x"])
        return net

    with pytest.raises(ModelError, match=words):
        run(base, checkpoint="15", build=build, actions__export__outputs=["logits", "odd"])
    assert not {name for name in left_behind(base) if name.startswith((".", "15"))}


def test_export_of_other_weights(tmp_path: Path) -> None:
    built = BuiltModel(tiny_model())
    served = ServedModel(built, ["x"], ["logits"])
    served.save(tmp_path / "model-0")
    assert "to the same bits" in compare(served, tmp_path / "model-0")
    built.variables["logits/bias"].assign([0.0, 3.0])
    with pytest.raises(ModelError, match="'logits' differs by"):
        compare(served, tmp_path / "model-0")


ROWS = iter(tf.data.Dataset.range(9))


def build_odd(inputs: Any, train_phase: bool) -> Any:
    """The tiny model with outputs that cannot be served."""
    net = tiny_build(inputs, train_phase)
    net.count = next(ROWS) if "y" not in inputs else tf.constant(0)
    return net


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        (["x"], ["nix", "loss"], "from x the model makes no 'nix', 'loss'; it makes x, fc0"),
        (["x"], ["count"], "TensorFlow cannot save the model: "),
    ],
)
def test_errors(inputs: list[str], outputs: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        ServedModel(BuiltModel(tiny_model(build=build_odd)), inputs, outputs).save(tmp_path / "model")
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_input_may_be_a_tensor_of_the_model() -> None:
    """Inputs without a batch, such as noise, together with a batch of one example and a scalar."""

    def datasets() -> dict[str, tf.data.Dataset]:
        return {"trn": tf.data.Dataset.from_tensors({"real": [[1.0, 2.0]], "scale": 3.0})}

    def build(inputs: Any, train_phase: bool) -> Any:
        net = {"noise": inputs["noise"] if "noise" in inputs else tf.ones([tf.shape(inputs["real"])[0], 3])}
        net["sample"] = keras.layers.Dense(2, name="generator")(net["noise"]) * inputs["scale"]
        return {**net, "loss": tf.reduce_mean(inputs["real"] - net["sample"])} if "real" in inputs else net

    trainer = BuiltModel(tiny_model(build=build, datasets=datasets))
    served = ServedModel(trainer, ["scale", "noise"], ["sample"])
    assert served.describe() == {
        "inputs": "scale float32[], noise float32[None,3]",
        "outputs": "sample float32[None,2]",
    }
    assert [case["noise"].shape.as_list() for case in served.cases] == [[1, 3], [2, 3]]
    assert [result["serving_default:sample"].shape.as_list() for result in served.results()] == [[1, 2], [2, 2]]
