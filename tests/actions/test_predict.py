from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.actions import predict
from prototrain.errors import ConfigError, DataError, ExperimentError, ModelError, PrototrainError
from prototrain.trainers.tower import SimpleTrainer
from tests.actions.conftest import model_in
from tests.tiny import tiny_arrays, tiny_build, tiny_datasets


def run(base: Path, *arguments: str, **model: Any) -> None:
    parser = ArgumentParser()
    predict.add_arguments(parser)
    predict.run(model_in(base, **model), parser.parse_args(arguments))


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_row_per_example(
    trained: SimpleTrainer, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, arrays = tmp_path / "a.jsonl", tmp_path / "b.npz"
    for path in (lines, arrays):
        run(base, "--outputs", "logits", "--keep", "y", "-o", str(path))
    found = rows(lines)
    with np.load(arrays) as content:
        assert content["logits"].dtype == np.float32 and content["y"].tolist() == tiny_arrays(20)["y"].tolist()
        assert [row["logits"] for row in found] == [pytest.approx(row) for row in content["logits"].tolist()]
        assert [row["y"] for row in found] == content["y"].tolist()
    assert sorted(path.name for path in tmp_path.glob("a*")) == ["a.jsonl", "a.jsonl.about.json"]
    assert json.loads((tmp_path / "a.jsonl.about.json").read_text())["data"] == "vld"
    with pytest.raises(ExperimentError, match="exists; name another file with -o, or replace it with --overwrite"):
        run(base, "--outputs", "logits", "-o", str(lines))
    run(base, "--outputs", "logits", "-o", str(lines), "--overwrite")
    assert list(rows(lines)[0]) == ["logits"]


def test_failure_leaves_no_file(trained: SimpleTrainer, base: Path, tmp_path: Path) -> None:
    def datasets() -> dict[str, tf.data.Dataset]:
        def batches() -> Any:
            yield tiny_arrays(4)
            raise OSError("the disk is gone")

        spec = {"x": tf.TensorSpec([None, 4], tf.float32), "y": tf.TensorSpec([None], tf.int32)}
        return {**tiny_datasets(), "vld": tf.data.Dataset.from_generator(batches, output_signature=spec)}

    with pytest.raises(DataError, match="the disk is gone"):
        run(base, "--outputs", "logits", "-o", str(tmp_path / "out.jsonl"), datasets=datasets)
    assert list(tmp_path.iterdir()) == []


def special(inputs: Any, train_phase: bool) -> Any:
    """The tiny model with outputs that not every format can hold."""
    net, size = tiny_build(inputs, train_phase), tf.shape(inputs["x"])[0]
    net.text = tf.repeat(tf.constant(["\u00e9"]), size)
    net.odd = tf.cast(tf.fill([size], np.nan), tf.float16)
    net.pair = tf.ones([size, 2])
    net.uneven = tf.ones([size, size])
    return net


def test_strings_vectors_and_non_finite_values(
    trained: SimpleTrainer, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("out.jsonl", "out.csv", "out.npz"):
        run(base, "--outputs", "text,odd,pair", "-o", str(tmp_path / name), build=special)
        assert ": 20 examples" in capsys.readouterr().out
    assert rows(tmp_path / "out.jsonl")[0] == {"text": "\u00e9", "odd": None, "pair": [1.0, 1.0]}
    assert (tmp_path / "out.csv").read_text().splitlines()[:2] == ["text,odd,pair.0,pair.1", "\u00e9,nan,1.0,1.0"]
    with np.load(tmp_path / "out.npz") as content:
        assert content["text"][19] == "\u00e9".encode() and content["odd"].dtype == np.float16


@pytest.mark.parametrize(
    ("file", "options", "error", "words"),
    [
        ("out.jsonl", [], PrototrainError, "predict: name the outputs"),
        ("out.jsonl", ["--outputs", "loss"], ModelError, r"'loss' is a .* of shape \(\), not a dense tensor"),
        ("out.jsonl", ["--outputs", "logits", "--keep", "logits"], ConfigError, "--keep logits: an output"),
        ("out.npz", ["--outputs", "uneven"], ModelError, "do not fit into one array; take .jsonl"),
    ],
)
def test_unwritable_outputs(
    file: str, options: list[str], error: type[Exception], words: str, trained: Any, base: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        run(base, *options, "-o", str(tmp_path / file), build=special)
    assert list(tmp_path.iterdir()) == []
