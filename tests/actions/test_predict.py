"""Predictions for a whole dataset or for files: what is written, and that it goes on where it was ended."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.actions import predict
from prototrain.actions.prediction_files import Predictions
from prototrain.actions.prediction_inputs import FileBatches
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
    run(base, "--outputs", "logits", "--keep", "y", "-o", str(lines))
    assert "is there already, of the same checkpoint, data and outputs" in capsys.readouterr().out


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


def test_it_goes_on_behind_what_is_written(
    trained: SimpleTrainer, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, fails = tmp_path / "out.jsonl", True
    given: list[int] = []

    def datasets(first: float = 0.0) -> dict[str, tf.data.Dataset]:
        def batches() -> Any:
            arrays = tiny_arrays(20)
            for start in range(0, 20, 4):
                if fails and start == 12:
                    raise OSError("the disk is gone")
                given.append(start)
                yield {"x": arrays["x"][start : start + 4] + first, "y": arrays["y"][start : start + 4]}

        spec = {"x": tf.TensorSpec([None, 4], tf.float32), "y": tf.TensorSpec([None], tf.int32)}
        return {**tiny_datasets(), "vld": tf.data.Dataset.from_generator(batches, output_signature=spec)}

    arguments = ("--outputs", "logits", "-o", str(path))
    with pytest.raises(DataError, match="the disk is gone"):
        run(base, *arguments, datasets=datasets)
    assert not path.exists() and [part.name[:9] for part in (tmp_path / "out.jsonl.parts").iterdir()] == ["000000000"]
    fails = False
    with pytest.raises(DataError, match="the data did not repeat: reading it again gave other batches"):
        run(base, *arguments, datasets=lambda: datasets(1.0))
    (tmp_path / "out.jsonl.parts" / ".tmp-000000003-half").write_text("{")
    run(base, *arguments, datasets=datasets)
    assert "going on behind 12 examples that are written" in capsys.readouterr().out
    assert len(rows(path)) == 20 and given[-5:] == [0, 4, 8, 12, 16]
    assert len({tuple(row["logits"]) for row in rows(path)}) == 20
    assert not (tmp_path / "out.jsonl.parts").exists()


def test_parts_are_of_some_seconds_and_put_together(tmp_path: Path) -> None:
    about = {"data": "made up"}
    batches = [{"text": np.array([b"a", "é".encode()], object), "n": np.array([1.0, np.nan], np.float16)}] * 3
    batches.append({"text": np.array([b"longest"], object), "n": np.array([np.inf], np.float16)})
    for suffix in (".npz", ".jsonl"):
        path = tmp_path / f"out{suffix}"
        for begun in (0, 2):
            predictions = Predictions(path, about, overwrite=False, clock=count(0, 11).__next__)
            assert predictions.batches == begun and predictions.digest == f"{begun:016x}"
            for number, batch in enumerate(batches[begun : begun + 2], start=begun + 1):
                predictions.add(batch, len(batch["n"]), f"{number:016x}")
        predictions.join()
        assert predictions.examples == 7 and predictions.not_finite == 2 and predictions.is_whole
        assert Predictions(path, about, overwrite=False).is_whole
        with pytest.raises(ExperimentError, match="is there already, with data 'made up', not 'other'; name another"):
            Predictions(path, {"data": "other"}, overwrite=False)
    with np.load(tmp_path / "out.npz") as content:
        assert content["text"].tolist() == [b"a", "é".encode()] * 3 + [b"longest"]
        assert content["n"].dtype == np.float16 and np.isinf(content["n"][6])
    assert rows(tmp_path / "out.jsonl")[1:] == [
        {"text": "é", "n": None},
        *[{"text": "a", "n": 1.0}, {"text": "é", "n": None}] * 2,
        {"text": "longest", "n": None},
    ]


@pytest.mark.parametrize(
    ("name", "rows", "words"),
    [
        ("a.npz", {"n": [np.ones([2, 3]), np.ones([2, 4])]}, r"rows of shape \(3,\) and of shape \(4,\)"),
        ("a.npz", {"n": [np.array([b"a\0"], object)]}, "end in a NUL"),
        ("a.npz", {"n": [tf.ragged.constant([[1], []])]}, "is ragged"),
        ("a.jsonl", {"n": [np.array([b"\xff"], object)]}, "no UTF-8"),
        ("a.jsonl", {"n": [np.ones(2, np.complex64)]}, "is complex"),
    ],
)
def test_what_a_format_cannot_hold(name: str, rows: dict[str, Any], words: str, tmp_path: Path) -> None:
    predictions = Predictions(tmp_path / name, {}, overwrite=False)
    with pytest.raises(ModelError, match=words):
        for value in rows["n"]:
            predictions.add({"n": value}, 2, "0" * 16)


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
        ('{"x": 300}', "lines 1 to 1: 'x': 300 does not fit into uint8"),
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
        ((), PrototrainError, "say what to write"),
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


def test_what_is_there_goes_when_it_is_to_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("of somebody else")
    with pytest.raises(ExperimentError, match="is there already, and nothing says what it is of"):
        Predictions(path, {}, overwrite=False)
    assert not Predictions(path, {}, overwrite=True).is_whole and list(tmp_path.iterdir()) == []
