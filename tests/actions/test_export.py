"""A SavedModel that gives what the model gives, or nothing at all."""

from __future__ import annotations

import gc
import subprocess
from argparse import Namespace
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain.actions import export, restore, saved_model
from prototrain.actions.saved_model import ServedModel
from prototrain.errors import ConfigError, ExperimentError, ModelError
from prototrain.model.built import BuiltModel
from prototrain.trainers.tower import SimpleTrainer
from tests.actions.conftest import model_in
from tests.tiny import tiny_arrays, tiny_build, tiny_model

WHAT = {"actions__export__inputs": ["x"], "actions__export__outputs": ["logits", "classes"]}


@cache
def table() -> tf.lookup.StaticHashTable:
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1], ["left", "right"]), "neither")


def build_with_classes(inputs: Any, train_phase: bool) -> Any:
    """The tiny model with a text as output, from a lookup table."""
    net = tiny_build(inputs, train_phase)
    net.classes = table().lookup(tf.argmax(net.logits, 1, output_type=tf.int32))
    return net


def run(base: Path, *, checkpoint: str | None = None, build: Any = build_with_classes, **model: Any) -> None:
    export.run(model_in(base, build=build, **{**WHAT, **model}), Namespace(checkpoint=checkpoint, format="saved_model"))


def left_behind(base: Path) -> list[str]:
    return [path.name for path in (base / "tiny").glob("exported/*")]


def test_an_export(trained: SimpleTrainer, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With moving averages, batch normalisation, dropout, a lookup table and text, loaded without prototrain."""
    table()
    gc.freeze()  # as a run from the command line has done when it exports: the collector does not know the table
    run(base)
    printed = capsys.readouterr().out
    for words in ("moving averages", "x float32[None,4]", "logits float32[None,2], classes string[None]"):
        assert words in printed
    assert "on 8 and 1 examples, to the same bits" in printed and printed.endswith(
        f"exported to {base}/tiny/exported/20\n"
    )
    assert left_behind(base) == ["20"]

    serve = tf.saved_model.load(str(base / "tiny/exported/20")).signatures["serving_default"]
    x = tiny_arrays(13)["x"]
    found = serve(x=tf.constant(x))
    restored = restore(model_in(base, build=build_with_classes))
    logits, classes = restored.built.get_predictor(["x"], ["logits", "classes"])(x)
    np.testing.assert_array_equal(found["logits"], logits)
    assert found["classes"].numpy().tolist() == classes.tolist()
    average = trained.state["callbacks/ExponentialMovingAverage/logits/bias"].numpy()
    assert not np.array_equal(average, trained.variables["logits/bias"])

    with pytest.raises(ExperimentError, match="exported/20 exists; delete it"):
        run(base)


def test_what_gives_other_values_never_appears(
    trained: SimpleTrainer, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gives_zeros(directory: Path, cases: list[dict[str, tf.Tensor]]) -> dict[str, Any]:
        assert (directory / "saved_model.pb").is_file()
        return {f"{case}/serving_default:logits": np.zeros([8, 2], np.float32) for case in range(2)}

    monkeypatch.setattr(saved_model, "_run_elsewhere", gives_zeros)
    with pytest.raises(ModelError, match="what was exported is not the model: 'logits' differs by 1 of its largest"):
        run(base, checkpoint="15", build=tiny_build, actions__export__outputs=["logits"])
    assert "15" not in left_behind(base) and not any(name.startswith(".") for name in left_behind(base))


FLOATS = np.array([1.0, -4.0, np.nan, np.inf], np.float32)


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        (FLOATS, FLOATS, 0.0),
        (FLOATS, FLOATS + np.array([0.1, 0.2, 0, 0], np.float32), 0.05),
        (FLOATS, np.zeros(4, np.float32), np.inf),
        (FLOATS, FLOATS[:3], np.inf),
        (FLOATS, FLOATS.astype(np.float64), np.inf),
        (np.zeros(2, np.float32), np.full(2, 1e-9, np.float32), 1e-3),
        (np.array([1, 2]), np.array([1, 2]), 0.0),
        (np.array([1, 2]), np.array([1, 3]), np.inf),
        (np.array([b"a"], object), np.array([b"b"], object), np.inf),
        (FLOATS[:2], np.array([1.0, np.nan], np.float32), np.nan),
    ],
)
def test_a_difference(expected: Any, found: Any, difference: float) -> None:
    assert saved_model._difference(expected, found) == pytest.approx(difference, rel=1e-3, nan_ok=True)


@pytest.mark.parametrize(("stderr", "words"), [("noise\nValueError: x\n", "ValueError: x"), ("", "exit code 9")])
def test_what_does_not_load_never_appears(
    stderr: str, words: str, trained: SimpleTrainer, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert command[1] == "-I"
        return subprocess.CompletedProcess(command, 9, "", stderr)

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(ModelError, match=f"does not run without prototrain: {words}"):
        run(base, checkpoint="15")
    assert "15" not in left_behind(base)


# -- what cannot be served --------------------------------------------------------------------------------------------


def with_numpy(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    net.shape = [1, 2]
    net.ragged = tf.RaggedTensor.from_tensor(net.x)
    return net


def with_label(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    net.hint = net.logits * tf.cast(inputs["y"], tf.float32)[:, None]
    return net


def with_own_error(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    return net if "y" in inputs else {}["own"]


def with_dropout(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    net.noisy = keras.layers.Dropout(0.5, name="always")(net.logits, training=True)
    return net


def with_noise(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    net.noisy = tf.cond(tf.shape(net.x)[0] > 0, lambda: tf.random.normal([2]), lambda: tf.zeros([2]))
    net.random_but_not_used = tf.random.uniform([2])
    return net


def names(inputs: list[str], outputs: list[str]) -> dict[str, Any]:
    return {"inputs": inputs, "outputs": outputs}


@pytest.mark.parametrize(
    ("build", "what", "words"),
    [
        (tiny_build, names(["z"], ["logits"]), "no 'z'; a batch and the model's mapping have x, fc0, bn0"),
        (tiny_build, names(["x"], ["nix", "loss"]), "from x the model makes no 'nix', 'loss'; it makes x, fc0, bn0"),
        (with_label, names(["x"], ["hint"]), "build() needs 'y' too when train_phase is False"),
        (with_numpy, names(["x"], ["shape"]), "actions.export.outputs: 'shape' is a list; only dense tensors"),
        (with_numpy, names(["ragged"], ["logits"]), "actions.export.inputs: 'ragged' is a RaggedTensor; only dense"),
        (with_dropout, names(["x"], ["noisy"]), "the outputs depend on random numbers (always"),
        (with_noise, names(["x"], ["noisy"]), "RandomStandardNormal); draw them in build() only where train_phase"),
    ],
)
def test_what_cannot_be_exported(build: Any, what: dict[str, list[str]], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        ServedModel(BuiltModel(tiny_model(build=build)), **what)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_an_error_of_the_models_own_stays_one() -> None:
    with pytest.raises(KeyError, match="own"):
        ServedModel(BuiltModel(tiny_model(build=with_own_error)), ["x"], ["logits"])


def test_a_name_that_no_argument_can_have() -> None:
    def datasets() -> dict[str, tf.data.Dataset]:
        data = tf.data.Dataset.from_tensor_slices({"a/b": [[1.0]]}).batch(1)
        return {"trn": data}

    def build(inputs: Any, train_phase: bool) -> Any:
        weight = tf.Variable(2.0, name="weight")
        return {"loss": tf.reduce_mean(inputs["a/b"] * weight)}

    with pytest.raises(ModelError, match="'a/b' cannot be the name of an argument"):
        ServedModel(BuiltModel(tiny_model(build=build, datasets=datasets)), ["a/b"], ["loss"])


@pytest.mark.parametrize("missing", ["inputs", "outputs"])
def test_a_config_that_does_not_say_what_to_export(missing: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"actions.export.{missing} is not set; give names of the model's mapping"):
        run(tmp_path, **{f"actions__export__{missing}": []})


def test_random_numbers_that_no_output_needs_do_no_harm() -> None:
    ServedModel(BuiltModel(tiny_model(build=with_noise)), ["x"], ["logits"])


def test_an_input_may_be_a_tensor_that_the_model_makes_for_a_batch() -> None:
    """As the noise of a generator, with one example in a batch and a scalar beside it."""

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


def test_what_tensorflow_cannot_save_is_one_line(tmp_path: Path) -> None:
    rows = iter(tf.data.Dataset.range(9))

    def build(inputs: Any, train_phase: bool) -> Any:
        net = tiny_build(inputs, train_phase)
        net.count = next(rows)
        return net

    served = ServedModel(BuiltModel(tiny_model(build=build)), ["x"], ["count"])
    with pytest.raises(ModelError, match="TensorFlow cannot save the model: ") as caught:
        served.save(tmp_path / "model")
    assert "\n" not in str(caught.value)
