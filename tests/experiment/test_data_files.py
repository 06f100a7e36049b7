"""Which files the data comes from, and whether they are still the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import readers
from prototrain.data.pipeline import named_files
from prototrain.experiment import data_files
from prototrain.experiment.data_files import describe_files, file_changes, noting_files
from tests.tiny import tiny_trainer


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two files of numbers in lines, as absolute paths."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        Path(f"{name}.txt").write_text("1\n2\n")
    return [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]


PIPELINES: dict[str, Any] = {
    "lines of a file": lambda files: tf.data.TextLineDataset(files[0]).concatenate(tf.data.TextLineDataset(files[1])),
    "listed": lambda files: tf.data.Dataset.list_files("*.txt", seed=1).map(tf.io.read_file),
    "captured by a function": lambda files: (
        lambda names: tf.data.Dataset.range(2).map(lambda i: tf.io.read_file(names[i]))
    )(tf.constant(files)),
    "chosen in a function": lambda files: tf.data.Dataset.range(2).map(
        lambda i: tf.cond(i > 0, lambda: tf.io.read_file(files[0]), lambda: tf.io.read_file("b.txt"))
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_files_that_a_pipeline_names(name: str, files: list[str]) -> None:
    assert named_files([PIPELINES[name](files)]) == set(files)


def test_files_that_python_opens(files: list[str], tmp_path: Path) -> None:
    opened: set[str] = set()
    inner: set[str] = set()
    with noting_files(opened):
        with noting_files(set()):
            pass
        np.loadtxt("a.txt")
        with noting_files(inner):
            os.close(os.open(files[1], os.O_RDONLY))
        Path("written").write_text("")
        with open(os.dup(0), "rb"):
            pass
    Path(files[0]).read_bytes()
    assert {path for path in opened if path.startswith(str(tmp_path))} == set(files)
    assert inner == {files[1]}


def test_a_description(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("code.py").write_text("")
    found = describe_files([*files, str(Path.cwd() / "code.py"), str(Path.cwd() / "gone"), "/proc/cpuinfo"])
    assert list(found) == ["a.txt", "b.txt"] and found["a.txt"] == found["b.txt"]
    assert found["a.txt"]["bytes"] == 4 and found["a.txt"]["sha256"].startswith("ef4a52b1")
    monkeypatch.chdir("/")
    assert list(describe_files(files)) in (files, [path[1:] for path in files])
    assert describe_files([]) == {}


def test_large_and_many_files(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "_HASHED_BYTES", 16)
    for path in files:
        Path(path).write_bytes(b"0123xxxx4567")
    before = describe_files(files)
    assert list(before["a.txt"]) == ["bytes", "sha256 of the first and last 4 bytes"]
    Path(files[0]).write_bytes(b"0123yyyy4567")
    assert describe_files(files) == before
    Path(files[0]).write_bytes(b"0123xxxx4568")
    (line,) = file_changes(before, describe_files(files))
    assert line.startswith("data file a.txt was 12 bytes (sha256 ")
    monkeypatch.setattr(data_files, "_LISTED", 1)
    many = describe_files(files)
    assert list(many) == ["a.txt", "(others)"] and many["(others)"]["files"] == 1


@pytest.mark.parametrize(
    ("then", "now", "lines"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, ["data file a was 1 bytes (sha256 11111111) and is 2 bytes (sha256 22222222)"]),
        ({"a": 1, "b": 2}, {"c": 1, "b": 2}, []),
        ({"a": 1}, {"c": 2}, ["data file a is not read now", "data file c was not read then"]),
        ({"a": 1}, {"a": None}, ["data file a was 1 bytes (sha256 11111111) and is unreadable"]),
    ],
)
def test_changes(then: dict[str, Any], now: dict[str, Any], lines: list[str]) -> None:
    def described(files: dict[str, Any]) -> dict[str, Any]:
        return {
            path: {"unreadable": "x"} if size is None else {"bytes": size, "sha256": f"{size}" * 64}
            for path, size in files.items()
        }

    assert file_changes(described(then), described(now)) == lines


def test_a_run_leaves_word_of_its_data(experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"x": [1, 2, 3, 4], "y": 1}\n' * 8)

    def datasets() -> dict[str, tf.data.Dataset]:
        features = {"x": ("float32", [4]), "y": ("int32", [])}
        return {"trn": readers.json_lines("rows.jsonl", features=features).batch(8)}

    found = tiny_trainer(experiment, datasets=datasets)._origin()
    assert list(found["data"]["files"]) == ["rows.jsonl"]
    assert found["data"]["files"]["rows.jsonl"]["bytes"] == 8 * 28
    assert found["data"]["stages"][-1] == "Batch(8, False)"
