"""Predictions for a whole dataset or for files: what is written, and what is refused."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.actions import predict
from prototrain.actions.new_data import FileBatches
from prototrain.errors import DataError, ExperimentError, ModelError, PrototrainError
from prototrain.experiment import Experiment
from prototrain.trainers.tower import SimpleTrainer
from tests.actions.conftest import model_in
from tests.tiny import tiny_arrays, tiny_datasets


def run(base: Path, *arguments: str, **model: Any) -> None:
    parser = ArgumentParser()
    predict.add_arguments(parser)
    predict.run(model_in(base, **model), parser.parse_args(arguments))


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_example_has_its_row(
    trained: SimpleTrainer, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, arrays, of_files = (tmp_path / name for name in ("a.jsonl", "b.npz", "c.jsonl"))
    for path in (lines, arrays):
        run(base, "--outputs", "logits", "--keep", "y", "-o", str(path))
    found = rows(lines)
    with np.load(arrays) as content:
        assert content["logits"].dtype == np.float32 and content["y"].tolist() == tiny_arrays(20)["y"].tolist()
        assert [row["logits"] for row in found] == [pytest.approx(row) for row in content["logits"].tolist()]
        assert [row["y"] for row in found] == content["y"].tolist()
    np.savez(tmp_path / "in.npz", **tiny_arrays(20))
    run(base, "--files", str(tmp_path / "in.npz"), "--outputs", "logits", "--keep", "y", "-o", str(of_files))
    assert of_files.read_bytes() == lines.read_bytes()
    assert sorted(path.name for path in tmp_path.glob("a*")) == ["a.jsonl", "a.jsonl.about.json"]
    assert json.loads((tmp_path / "a.jsonl.about.json").read_text())["data"] == "vld"
    with pytest.raises(ExperimentError, match="exists; name another file with -o, or replace it with --overwrite"):
        run(base, "--outputs", "logits", "-o", str(lines))
    run(base, "--outputs", "logits", "-o", str(lines), "--overwrite")
    assert list(rows(lines)[0]) == ["logits"]


def test_what_lies_in_the_experiment_is_uploaded(
    trained: SimpleTrainer, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[Path] = []
    monkeypatch.setattr(Experiment, "keep", lambda experiment, path: kept.append(path) or f"s3://there/{path.name}")
    run(base, "--outputs", "logits")
    about, lines = kept
    assert about.name == f"{lines.name}.about.json" and len(rows(lines)) == 20
    assert f"written to s3://there/{lines.name}: 20 examples" in capsys.readouterr().out
    for path in kept:
        path.unlink()


def test_a_failure_leaves_nothing(trained: SimpleTrainer, base: Path, tmp_path: Path) -> None:
    def datasets() -> dict[str, tf.data.Dataset]:
        def batches() -> Any:
            yield tiny_arrays(4)
            raise OSError("the disk is gone")

        spec = {"x": tf.TensorSpec([None, 4], tf.float32), "y": tf.TensorSpec([None], tf.int32)}
        return {**tiny_datasets(), "vld": tf.data.Dataset.from_generator(batches, output_signature=spec)}

    with pytest.raises(DataError, match="the disk is gone"):
        run(base, "--outputs", "logits", "-o", str(tmp_path / "out.jsonl"), datasets=datasets)
    assert list(tmp_path.iterdir()) == []


BATCHES = [
    {"text": np.array([b"a", "\u00e9".encode()], object), "n": np.array([1.0, np.nan], np.float16)},
    {"text": np.array([b"longest"], object), "n": np.array([np.inf], np.float16)},
]


def written(path: Path, batches: list[dict[str, Any]]) -> int:
    with predict._written(path) as write:
        return sum(map(write, batches))


def test_texts_and_what_is_not_finite(tmp_path: Path) -> None:
    lines, arrays = tmp_path / "out.jsonl", tmp_path / "out.npz"
    assert [written(path, BATCHES) for path in (lines, arrays)] == [2, 2]
    assert rows(lines) == [{"text": "a", "n": 1.0}, {"text": "\u00e9", "n": None}, {"text": "longest", "n": None}]
    with np.load(arrays) as content:
        assert content["text"].tolist() == [b"a", "\u00e9".encode(), b"longest"]
        assert content["n"].dtype == np.float16 and np.isinf(content["n"][2])


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("a.npz", [np.ones([2, 3]), np.ones([2, 4])], r"rows of shape \(3,\) and of shape \(4,\)"),
        ("a.npz", [np.array([b"a\0"], object)], "end in a NUL"),
        ("a.npz", [tf.ragged.constant([[1], []])], "is ragged"),
        ("a.jsonl", [np.array([b"\xff"], object)], "not UTF-8"),
        ("a.jsonl", [np.ones(2, np.complex64)], "is complex"),
    ],
)
def test_what_a_format_cannot_hold(name: str, values: list[Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        written(tmp_path / name, [{"n": value} for value in values])
    assert list(tmp_path.iterdir()) == []


def test_lines_of_files_become_batches(tmp_path: Path) -> None:
    lines = [{"user": {"age": age, "tags": [1] * age}, "name": "é", "id": age} for age in (1, 2, 3)]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    tags = tf.RaggedTensorSpec([None, None], tf.int64)
    spec = {"user": {"age": tf.TensorSpec([None], tf.uint8), "tags": tags}, "name": tf.TensorSpec([None], tf.string)}
    first, second = FileBatches([file], 2, spec)
    assert first["user"]["age"].dtype == tf.uint8 and first["user"]["tags"].to_list() == [[1], [1, 1]]
    assert first["name"].numpy()[0] == "é".encode() and second["id"].numpy().tolist() == [3]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"x": 300}', "rows 1 to 1: 'x': 300 does not fit into uint8"),
        ('{"x": 1.5}', "1.5 does not fit into uint8"),
        ('{"x": 1}\n{"y": 1}', "'x' is missing in some examples"),
        ('{"x": [1]}\n{"x": [1, 2]}', "'x' is not of one shape"),
        ('{"x": "a"}', "'x' is <U1, and in a training batch uint8"),
        ("{", "one is not JSON"),
        ("[1]", "one is not a JSON object"),
        ("", "holds no examples"),
    ],
)
def test_files_that_do_not_fit(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(content)
    with pytest.raises(DataError, match=words):
        FileBatches([file], 8, {"x": tf.TensorSpec([None], tf.uint8)})


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((), PrototrainError, "predict: name the outputs"),
        (("--outputs", "loss"), ModelError, r"'loss' of shape \(\) has not one row for each of 8 examples"),
        (("--outputs", "x", "--keep", "id"), DataError, "a batch has no 'id'; it has: x, y"),
    ],
)
def test_what_cannot_be_written(
    arguments: tuple[str, ...], error: type[Exception], words: str, trained: SimpleTrainer, base: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        run(base, *arguments, "-o", str(tmp_path / "out.jsonl"))
    assert list(tmp_path.iterdir()) == []
