"""Data whose files were moved: the place is kept, or the run is refused where the place has their names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from prototrain import readers
from prototrain.data.pipeline import describe_pipeline
from prototrain.data.stream import OTHER_SIZES, TrainingData
from prototrain.errors import CheckpointError

Make = Callable[[Path], tf.data.Dataset]
X = {"x": ("float32", [])}
OTHER_NAMES = "the names of its files are not what they were"


def write(directory: Path, rows: int = 20) -> Path:
    directory.mkdir(parents=True)
    for number in range(3):
        numbers = range(100 * number, 100 * number + rows)
        (directory / f"{number}.csv").write_text("x\n" + "".join(f"{one:04}\n" for one in numbers))
        with tf.io.TFRecordWriter(str(directory / f"{number}.tfrecord")) as writer:
            for one in numbers:
                floats = tf.train.Feature(float_list=tf.train.FloatList(value=[one]))
                example = tf.train.Example(features=tf.train.Features(feature={"x": floats}))
                writer.write(example.SerializeToString())
    return directory


def of_lines(lines: tf.data.Dataset) -> tf.data.Dataset:
    def is_number(line: tf.Tensor) -> tf.Tensor:
        return line != "x"

    def parse(line: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"x": tf.strings.to_number(line)}

    return lines.filter(is_number).map(parse)


def files(directory: Path) -> list[str]:
    return sorted(map(str, directory.glob("*.csv")))


def one_after_the_other(directory: Path) -> tf.data.Dataset:
    return of_lines(tf.data.TextLineDataset(files(directory))).shuffle(10)


def in_turns(directory: Path) -> tf.data.Dataset:
    return of_lines(tf.data.Dataset.from_tensor_slices(files(directory)).interleave(tf.data.TextLineDataset))


def shuffled_files(directory: Path) -> tf.data.Dataset:
    found = tf.data.Dataset.list_files(f"{directory}/*.csv")
    return of_lines(found.interleave(tf.data.TextLineDataset)).shuffle(10)


def one_of_each(directory: Path) -> tf.data.Dataset:
    def read(name: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"x": tf.strings.to_number(tf.strings.substr(tf.io.read_file(name), 2, 4))}

    return tf.data.Dataset.from_tensor_slices(files(directory) * 20).shuffle(60).map(read, num_parallel_calls=2)


def rows_by_index(directory: Path) -> tf.data.Dataset:
    return readers.csv(files(directory), features=X, shuffle="index")


def records_by_index(directory: Path) -> tf.data.Dataset:
    return readers.tfrecords(directory / "*.tfrecord", features=X, shuffle="index")


def training(make: Make, directory: Path) -> TrainingData:
    def quietly(line: str) -> None:
        pass

    return TrainingData(lambda: {"trn": make(directory).batch(4)}, seed=3, announce=quietly)


def batches(data: TrainingData, number: int) -> list[Any]:
    return [data.next_batch()["x"].numpy().tolist() for _ in range(number)]


def place(data: TrainingData, tmp_path: Path) -> dict[str, Any]:
    """Save the place behind some batches."""
    batches(data, 6)
    return dict(json.loads(json.dumps(data.write(str(tmp_path / "place"))())))


def resumed(make: Make, there: Path, here: Path, tmp_path: Path) -> tuple[TrainingData, list[Any]]:
    """What goes on from a place, with files that were moved; and what came next."""
    before = training(make, there)
    meta = place(before, tmp_path)
    expected = batches(before, 20)
    here.parent.mkdir(exist_ok=True)
    shutil.move(there, here)
    after = training(make, here)
    after.read(str(tmp_path / "place"), meta)
    return after, expected


@pytest.mark.parametrize("make", [rows_by_index, records_by_index, shuffled_files])
def test_a_number_and_a_replay_find_moved_files(make: Make, tmp_path: Path) -> None:
    after, expected = resumed(make, write(tmp_path / "there"), tmp_path / "a" / "here", tmp_path)
    assert after.caveat is None
    assert batches(after, 20) == expected and after.caveat is None


@pytest.mark.parametrize("make", [one_after_the_other, in_turns, one_of_each])
def test_a_place_that_has_names_of_files_is_refused(make: Make, tmp_path: Path) -> None:
    there, here = write(tmp_path / "there"), tmp_path / "here"
    with pytest.raises(CheckpointError, match=f"its files are in {here}, and the saved position reads {there}"):
        resumed(make, there, here, tmp_path)


@pytest.mark.parametrize("make", [one_after_the_other, in_turns, shuffled_files, rows_by_index])
def test_files_of_other_sizes_are_said(make: Make, tmp_path: Path) -> None:
    there = write(tmp_path / "there")
    meta = place(training(make, there), tmp_path)
    content = (there / "2.csv").read_text()
    (there / "2.csv").write_text(content.removesuffix("0219\n") + "02190\n")
    after = training(make, there)
    after.read(str(tmp_path / "place"), meta)
    assert after.caveat == OTHER_SIZES and after.offset == 6  # a record may have been repaired


@pytest.mark.parametrize("make", [one_after_the_other, in_turns, shuffled_files, rows_by_index])
def test_other_names_are_other_data(make: Make, tmp_path: Path) -> None:
    there = write(tmp_path / "there")
    meta = place(training(make, there), tmp_path)
    (there / "2.csv").rename(there / "3.csv")
    with pytest.raises(CheckpointError, match=OTHER_NAMES):
        training(make, there).read(str(tmp_path / "place"), meta)


@pytest.mark.parametrize("shuffle", ["index", None])
def test_a_file_at_a_url_that_was_replaced_is_other_data(
    shuffle: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / "cache"))
    url = f"memory://{tmp_path.name}/0.tfrecord"
    write(tmp_path / "one")
    write(tmp_path / "other", 21)

    def make(directory: Path) -> tf.data.Dataset:
        with fsspec.open(url, "wb") as file:
            file.write((directory / "0.tfrecord").read_bytes())
        return readers.tfrecords(url, features=X, shuffle=shuffle).take(20)

    data = training(make, tmp_path / "one")
    meta = place(data, tmp_path)
    with pytest.raises(CheckpointError, match="training data has changed"):
        training(make, tmp_path / "other").read(str(tmp_path / "place"), meta)


def test_texts_are_no_names(tmp_path: Path) -> None:
    write(tmp_path / "there")
    for texts in (["a", "b"], [str(tmp_path / "there")], [*files(tmp_path / "there"), "none"], ["\0"]):
        assert not describe_pipeline(tf.data.Dataset.from_tensor_slices(texts))["directory"]
