from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest

from prototrain.cli import main
from tests.conftest import forget_models
from tests.tiny import fails

MODEL = """
import tensorflow as tf
from prototrain import Config, readers
config = Config({
    "trainer.experiment_name": "m",
    "model.batch_size": 2,
    "model.num_steps": 2,
    "model.optimizer.method": "sgd",
    "model.lr_schedule.method": "constant",
    "model.lr_schedule.constant.value": 0.0,
})

def datasets():
    return {"trn": tf.data.Dataset.from_tensor_slices({"age": [1.0, 2.0], "y": [1.0, 2.0]}).batch(2)}

def build(inputs, train_phase):
    net = {"twice": inputs["age"] * 2 * tf.Variable(1.0, name="scale")}
    net["pair"] = tf.stack([inputs["age"], inputs["age"]], 1)
    if "y" in inputs:
        net["loss"] = tf.reduce_mean((net["twice"] - inputs["y"]) ** 2)
    return net
"""
SERVING = """
def serving(inputs):
    if "content" in inputs:
        decode = lambda data: tf.reduce_mean(readers.decode_image(data, size=(2, 2), channels=1))
        return {"age": tf.map_fn(decode, inputs["content"], fn_output_signature=tf.float32)}
    number = lambda x: tf.strings.to_number(x) if x.dtype == tf.string else tf.cast(x, tf.float32)
    return {"age": number(inputs["years"]) / 10, **({"y": number(inputs["y"])} if "y" in inputs else {})}
"""


@pytest.fixture(autouse=True)
def _trained(scratch: Path) -> None:
    """A trained model `m` that has the function `serving`."""
    (scratch / "m.py").write_text(MODEL + SERVING)
    assert main(["run", "m"]) == 0


def predict(file: str, *outputs: str) -> list[dict[str, str]]:
    command = ["-o", "out.csv", "--overwrite", "--files", file, "--outputs", ",".join(outputs)]
    assert main(["action", "m", "predict", *command]) == 0
    return list(csv.DictReader(io.StringIO(Path("out.csv").read_text())))


def test_each_format(capsys: pytest.CaptureFixture[str]) -> None:
    Path("new.csv").write_text("years,name\n20,a\n30,b\n40,c\n")
    Path("new.jsonl").write_text('{"years": 20, "name": "a"}\n{"years": 30, "name": "b"}\n{"years": 40, "name": "c"}\n')
    np.savez("new.npz", years=np.array([20, 30, 40]))
    for file in ("new.csv", "new.jsonl", "new.npz"):
        found = predict(file, "twice", "pair")
        assert [float(row["twice"]) for row in found] == [4, 6, 8] and float(found[0]["pair.1"]) == 2.0
    Path("new").mkdir()
    for index, grey in enumerate((0, 255)):
        keras.utils.save_img(f"new/{index}.png", np.full([2, 2, 1], grey), scale=False)
    files = {row["file"]: float(row["twice"]) for row in predict("new", "twice")}
    assert files == {"new/0.png": 0, "new/1.png": 2}

    for files, name in ((["new.csv"], "new"), (["new.csv", "new.csv"], "new-new")):
        assert main(["action", "m", "predict", "--outputs", "twice", "--files", *files]) == 0
        assert Path(f"experiments/m/analysis/step-0000000002-predict-{name}.jsonl").is_file()
    Path("labelled.csv").write_text("y,years\n6,20\n4,30\n6,40\n")
    capsys.readouterr()
    assert main(["action", "m", "evaluate", "--files", "labelled.csv"]) == 0
    assert re.search(r"^loss +4$", capsys.readouterr().out, re.MULTILINE)
    written = json.loads(Path("experiments/m/analysis/step-0000000002-evaluate.json").read_text())
    assert written["datasets"]["labelled.csv"]["examples"] == 3


def test_unreadable_files(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x.jsonl", "x.csv"):
        Path(name).touch()
    Path("list.jsonl").write_text("[1]\n")
    Path("other.csv").write_text("name\na\n")
    np.savez("uneven.npz", years=np.zeros(1), name=np.zeros(2))
    for files, message in [
        (["gone.csv"], "there is no gone.csv"),
        (["x.csv", "x.jsonl"], "of one format"),
        (["x.jsonl"], "holds no examples"),
        (["list.jsonl"], "not a JSON object"),
        (["uneven.npz"], "is no .npz of arrays of one length"),
        (["other.csv"], "serving() failed: KeyError: 'years'; the files have name (string)"),
    ]:
        assert message in fails(capsys, "action", "m", "evaluate", "--files", *files)
    Path("m.py").write_text(MODEL)
    forget_models()
    said = fails(capsys, "action", "m", "evaluate", "--files", "list.jsonl")
    assert "give the model a function serving(inputs)" in said
