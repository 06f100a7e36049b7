"""Weights that are taken over from other checkpoints."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain.callbacks import SaveOnExit
from prototrain.checkpoint.weights import load_report_table, load_weights
from prototrain.errors import CheckpointError
from tests.tiny import tiny_trainer


def variables(**shapes: list[int]) -> dict[str, tf.Variable]:
    """Variables of ones by name, with ``__`` for a slash."""
    return {name.replace("__", "/"): tf.Variable(tf.ones(shape)) for name, shape in shapes.items()}


NET = {"fc0__kernel": [4, 6], "fc0__bias": [6], "logits__kernel": [6, 2]}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment directory of a run of three steps."""
    directory = tmp_path_factory.mktemp("source") / "run"
    tiny_trainer(directory).train([SaveOnExit()], max_steps=3)
    return directory


@pytest.mark.parametrize(
    "place",
    [".", "checkpoints", "checkpoints/step-0000000003", "checkpoints/step-0000000003/model"],
)
def test_weights_of_a_run(source: Path, place: str) -> None:
    trainer = tiny_trainer()
    report = load_weights(trainer.variables, source / place)
    assert report["loaded"] == list(trainer.variables)
    assert all(name.startswith("optimizer/") for name in report["excluded"]) and report["excluded"]
    assert not (report["not in the model"] or report["not in the checkpoint"] or report["shape differs"])
    saved = tf.train.load_checkpoint(str(source / "checkpoints/step-0000000003/model"))
    for name, variable in trainer.variables.items():
        assert np.array_equal(variable.numpy(), saved.get_tensor(name))


def test_every_outcome_is_reported_and_nothing_else_is_changed(source: Path) -> None:
    mine = variables(fc0__kernel=[4, 6], fc0__bias=[7], logits__kernel=[6, 2], head__kernel=[2, 2])
    report = load_weights(mine, source, exclude="logits")
    assert report["loaded"] == ["fc0/kernel"]
    assert report["excluded"][0] == "logits/kernel"
    assert report["not in the checkpoint"] == ["head/kernel"]
    assert {"bn0/gamma", "logits/bias"} <= set(report["not in the model"])
    assert report["shape differs"] == ["fc0/bias: float32[6], here float32[7]"]
    changed = {name for name, variable in mine.items() if not np.all(variable.numpy() == 1.0)}
    assert changed == {"fc0/kernel"}
    table = load_report_table(report)
    assert all(kind in table for kind in report) and max(map(len, table.splitlines())) <= 120


def test_weights_of_an_object_based_checkpoint(tmp_path: Path) -> None:
    layer = keras.layers.Dense(6, name="fc0")
    layer.build((None, 4))
    layer.bias.assign(np.arange(6))
    prefix = tf.train.Checkpoint(layers=[layer], steps=tf.Variable(3, name="steps")).write(str(tmp_path / "weights"))
    mine = variables(**NET)
    report = load_weights(mine, prefix)
    assert report["loaded"] == ["fc0/kernel", "fc0/bias"]
    assert report["not in the model"] == ["steps"]
    assert mine["fc0/bias"].numpy().tolist() == [0, 1, 2, 3, 4, 5]


def test_weights_of_a_name_based_checkpoint(tmp_path: Path) -> None:
    tensors = {"fc0/kernel": tf.zeros([4, 6]), "fc0/bias": tf.zeros([6], tf.float64)}
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "old"), tensor_names=list(tensors), shape_and_slices=["", ""], tensors=[*tensors.values()]
    )
    report = load_weights(variables(**NET), tmp_path / "old")
    assert report["loaded"] == ["fc0/kernel"]
    assert report["shape differs"] == ["fc0/bias: float64[6], here float32[6]"]


def empty(place: Path) -> Path:
    place.mkdir()
    return place


def other(place: Path) -> Path:
    tensors = [tf.zeros([3])]
    tf.raw_ops.SaveV2(prefix=str(place), tensor_names=["x"], shape_and_slices=[""], tensors=tensors)
    return place


def piped(place: Path) -> Path:
    place.with_name(place.name + ".index").write_text("")
    os.mkfifo(place.with_name(place.name + ".data-00000-of-00001"))
    return place


def damaged(place: Path) -> Path:
    place.with_name(place.name + ".index").write_text("no index")
    return place


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda place: place, "weights_load_path: there is no checkpoint at .*place; give an experiment's directory"),
        (empty, "weights_load_path: there is no checkpoint at"),
        (lambda place: place.with_name("n" * 300), "File name too long"),
        (lambda place: Path(f"{place}\0"), "there is no checkpoint '.*: embedded null byte"),
        (piped, "place.data-00000-of-00001 is a pipe, not a file"),
        (other, "nothing in .*place matches a variable of the model"),
        (damaged, "cannot read the checkpoint"),
    ],
)
def test_no_usable_checkpoint_is_an_error_and_changes_nothing(tmp_path: Path, make: Any, message: str) -> None:
    mine = variables(**NET)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_weights(mine, make(tmp_path / "place"))
    assert "\n" not in str(caught.value)
    assert all(np.all(variable.numpy() == 1.0) for variable in mine.values())


def test_a_damaged_checkpoint_of_a_run_is_named(tmp_path: Path) -> None:
    tiny_trainer(tmp_path / "run").train([SaveOnExit()], max_steps=1)
    (data,) = (tmp_path / "run/checkpoints/step-0000000001").glob("model.data*")
    data.write_bytes(data.read_bytes()[:-4])
    for place in (".", "checkpoints/step-0000000001", "checkpoints/step-0000000001/model"):
        with pytest.raises(CheckpointError, match=r"step-0000000001 is damaged: model.data"):
            load_weights(variables(**NET), tmp_path / "run" / place)


@pytest.mark.parametrize("name", ["model.index", "model.data-00000-of-00001", "meta.json"])
def test_a_prefix_inside_of_a_checkpoint_has_its_checksums(name: str, source: Path, tmp_path: Path) -> None:
    """TensorFlow's own checksums leave some bytes of an index out."""
    place = tmp_path / "checkpoints/step-0000000003"
    shutil.copytree(source / "checkpoints/step-0000000003", place)
    content = bytearray((place / name).read_bytes())
    for position in range(0, len(content), max(1, len(content) // 20)):
        content[position] ^= 4
        (place / name).write_bytes(content)
        content[position] ^= 4
        with pytest.raises(CheckpointError, match="is damaged"):
            load_weights(variables(**NET), place / "model")
    (place / "meta.json").unlink()
    with pytest.raises(CheckpointError, match="is damaged: No such file"):
        load_weights(variables(**NET), place / "model")


def test_weights_that_are_nan_are_refused_and_infinite_ones_taken(tmp_path: Path) -> None:
    for value in (np.inf, np.nan):
        place = tmp_path / str(value)
        tensors = [tf.fill([4, 6], value), tf.zeros([6])]
        names = ["fc0/kernel", "fc0/bias"]
        tf.raw_ops.SaveV2(prefix=str(place), tensor_names=names, shape_and_slices=["", ""], tensors=tensors)
        mine = variables(**NET)
        if value == np.inf:
            assert load_weights(mine, place)["loaded"] == names
            continue
        with pytest.raises(CheckpointError, match="fc0/kernel is NaN; take a checkpoint of an earlier step"):
            load_weights(mine, place)
        assert all(np.all(variable.numpy() == 1.0) for variable in mine.values())
