"""Predicting and evaluating on files that the run has not seen."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest

from prototrain.cli import main

CONFIG = """
import keras, tensorflow as tf
from prototrain import Config, readers
config = Config({
    "trainer.experiment_name": "m",
    "model.batch_size": 4,
    "model.num_steps": 2,
    "model.optimizer.method": "sgd",
    "model.lr_schedule.method": "constant",
    "model.lr_schedule.constant.value": 0.0,
})
"""
TABLE = (
    CONFIG
    + """
FEATURES = {"age": ("float32", []), "city": ("string", []), "label": ("int32", [])}

def prepared(example):
    is_here = tf.cast(example["city"] == "here", tf.float32)
    return {"age": example["age"] / 10, "is_here": is_here, "y": example["label"]}

def read(file):
    return readers.csv(file, features=FEATURES, defaults={"age": 5.0}).map(prepared)

def datasets():
    return {"trn": read("trn.csv").repeat().batch(4), "vld": read("vld.csv").batch(4)}

def build(inputs, train_phase):
    scale = tf.Variable(1.0, name="scale")
    net = {"twice": (inputs["age"] + inputs["is_here"]) * 2 * scale}
    net["pair"] = tf.stack([inputs["age"], inputs["age"]], 1)
    if "y" in inputs:
        net["loss"] = tf.reduce_mean((net["twice"] - tf.cast(inputs["y"], tf.float32)) ** 2)
    return net
"""
)
SERVING = """
def serving(inputs):
    age = tf.strings.to_number(inputs["years"]) / 10
    return {"age": age, "is_here": tf.zeros_like(age)}
"""
ROWS = "age,city,label\n10,here,1\n,there,0\n30,here,1\n"
IMAGES = (
    CONFIG
    + """
def read(folder):
    return readers.image_folder(folder, size=(2, 2), channels=1).batch(4)

def datasets():
    return {"trn": read("trn").repeat(), "vld": read("vld")}

def build(inputs, train_phase):
    net = {"mean": tf.reduce_mean(inputs["image"], [1, 2, 3]) * tf.Variable(1.0, name="scale")}
    if "label" in inputs:
        net["loss"] = tf.reduce_mean((net["mean"] - tf.cast(inputs["label"], tf.float32)) ** 2)
    return net
"""
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("m", None)


def train(source: str) -> None:
    Path("m.py").write_text(source)
    for name in ("trn.csv", "vld.csv"):
        Path(name).write_text(ROWS)
    assert main(["run", "m"]) == 0


def predict(*arguments: str) -> list[dict[str, str]]:
    assert main(["action", "m", "predict", "-o", "out.csv", "--overwrite", *arguments]) == 0
    return list(csv.DictReader(io.StringIO(Path("out.csv").read_text())))


def test_new_rows_go_through_datasets(capsys: pytest.CaptureFixture[str]) -> None:
    train(TABLE)
    Path("new.csv").write_text("city,age\nhere,20\nthere,\n")
    outputs = ("--files", "new.csv", "--outputs", "twice,pair")
    assert main(["action", "m", "predict", *outputs]) == 1
    assert re.search("has no column 'label'.*--without label", capsys.readouterr().err)
    found = predict(*outputs, "--without", "label")
    assert [float(row["twice"]) for row in found] == [6.0, 1.0]
    assert [list(row) for row in found] == [["twice", "pair.0", "pair.1"]] * 2 and float(found[0]["pair.1"]) == 2.0
    Path("labelled.csv").write_text("label,city,age\n6,here,20\n3,there,\n")
    assert main(["action", "m", "evaluate", "--files", "labelled.csv"]) == 0
    assert re.search("^loss +2$", capsys.readouterr().out, re.MULTILINE)
    written = json.loads(Path("experiments/m/analysis/step-0000000002-evaluate.json").read_text())
    assert written["datasets"]["labelled.csv"]["examples"] == 2


def test_serving_prepares_new_rows() -> None:
    train(TABLE + SERVING)
    Path("new.csv").write_text("years,name\n20,a\n30,b\n40,c\n50,d\n60,e\n")
    assert [float(row["twice"]) for row in predict("--files", "new.csv", "--outputs", "twice")] == [4, 6, 8, 10, 12]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('read("vld.csv")', 'read("trn.csv").take(2)', "cannot go through datasets"),
        ('read("vld.csv").batch(4)', 'read("vld.csv").batch(2, drop_remainder=True)', "gives 2 of the 3 examples"),
        ('read("vld.csv")', 'read("vld.csv").shuffle(9)', "cannot go through datasets"),
    ],
)
def test_rows_that_datasets_would_drop_or_mix_are_refused(
    old: str, new: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train(TABLE.replace(old, new))
    Path("new.csv").write_text(ROWS)
    assert main(["action", "m", "predict", "--files", "new.csv", "--outputs", "twice", "-o", "out.csv"]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not Path("out.csv").exists()


def test_images_of_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    for folder, grey in (("trn/a", 0), ("trn/b", 255), ("vld/a", 0), ("vld/b", 255), ("new", 255), ("good/b", 255)):
        Path(folder).mkdir(parents=True)
        for index in range(2):
            keras.utils.save_img(f"{folder}/{index}.png", np.full([2, 2, 1], grey), scale=False)
    train(IMAGES)
    found = predict("--files", "new", "--outputs", "mean", "--without", "label")
    assert [(row["file"], float(row["mean"])) for row in found] == [("new/0.png", 1.0), ("new/1.png", 1.0)]
    assert main(["action", "m", "evaluate", "--files", "good"]) == 0  # the only class there is still number 1
    assert re.search("^loss +0$", capsys.readouterr().out, re.MULTILINE)
    assert main(["action", "m", "predict", "--files", "new", "--outputs", "mean"]) == 1
    assert "--without label" in capsys.readouterr().err
    serving = "def serving(inputs):\n    return {'image': tf.zeros([tf.shape(inputs['content'])[0], 2, 2, 1])}\n"
    Path("m.py").write_text(IMAGES + serving)
    sys.modules.pop("m")
    assert [float(row["mean"]) for row in predict("--files", "new", "--outputs", "mean")] == [0, 0]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["gone.csv"], "there is no gone.csv"),
        (["trn.csv", "x.jsonl"], "of one format"),
        (["x.txt"], "of one format"),
    ],
)
def test_files_that_cannot_be_read(files: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    train(TABLE)
    for name in ("x.jsonl", "x.txt"):
        Path(name).touch()
    assert main(["action", "m", "evaluate", "--files", *files]) == 1
    assert message in capsys.readouterr().err
