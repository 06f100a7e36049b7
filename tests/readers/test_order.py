"""Shuffling by index: a new order of all examples in each pass, a place that is a number, tables that are kept."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import readers
from prototrain.data.rule import reshuffles
from prototrain.data.stream import TrainingData
from prototrain.errors import DataError
from prototrain.readers.order import Order, _permuted, random_order

D = tf.data.Dataset
Y = {"y": ("int64", [])}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def numbers(length: int, seed: int | None = None) -> tf.data.Dataset:
    return random_order(Order(length, seed), lambda rows: {"y": rows}, about="numbers", files=(), each=8)


def _of_lengths(dataset: D) -> D:
    return dataset.map(lambda item: {"y": tf.range(item["y"] + 1)})


def labels(dataset: tf.data.Dataset) -> list[int]:
    return [int(item["y"]) for item in dataset.as_numpy_iterator()]


def write_records(path: str, values: list[int]) -> None:
    with tf.io.TFRecordWriter(path) as writer:
        for value in values:
            one = tf.train.Feature(int64_list=tf.train.Int64List(value=[value] * (value % 3 + 1)))
            example = tf.train.Example(features=tf.train.Features(feature={"all": one, "y": _single(value)}))
            writer.write(example.SerializeToString())


def _single(value: int) -> Any:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def test_every_pass_has_an_order_of_its_own_and_every_order_comes_as_often() -> None:
    order = Order(4, 0)
    seeds = tf.constant(np.stack([order.begin()[1] for _ in range(480)]))
    places = [_permuted(tf.fill([480], tf.constant(number, tf.int64)), seeds, 4).numpy() for number in range(4)]
    found = Counter(zip(*(column.tolist() for column in places), strict=True))
    assert all(sorted(one) == [0, 1, 2, 3] for one in found) and len(found) == 24
    assert sum((count - 20) ** 2 / 20 for count in found.values()) < 49.7  # chi square, 23 degrees: one in a thousand
    large = [labels(numbers(1000, seed)) for seed in (1, 2, 1)]
    assert sorted(large[0]) == list(range(1000)) and large[0] == large[2] != large[1]
    assert Counter(np.diff(large[0]) == 1)[True] < 10


@pytest.mark.parametrize(
    "above",
    [
        lambda d: d.batch(4, drop_remainder=True).prefetch(2),
        lambda d: d.repeat().map(lambda item: {"y": item["y"] + 1}, num_parallel_calls=2).batch(4),
        lambda d: d.batch(4).repeat(),
        lambda d: d.padded_batch(4),
    ],
)
def test_the_place_is_a_number_and_a_resume_is_exact(above: Callable[[D], D], tmp_path: Path) -> None:
    def make() -> dict[str, D]:
        return {"trn": above(numbers(10))}

    data = TrainingData(make, seed=5)
    assert data.describe() == "iterator"
    metas, batches = [], []
    for _ in range(9):
        metas.append(json.loads(json.dumps(data.write(str(tmp_path / "place"))())))
        batches.append(data.next_batch()["y"].numpy().tolist())
    assert not list(tmp_path.glob("place*"))
    for offset in (1, 3, 6):
        other = TrainingData(make, seed=5)
        other.read("", metas[offset])
        assert other.caveat is None
        assert [other.next_batch()["y"].numpy().tolist() for _ in range(2)] == batches[offset : offset + 2]
        other.rewind()
        assert other.next_batch()["y"].numpy().tolist() == batches[offset + 2]
    assert all(one != other for one, other in pairwise(batches))


@pytest.mark.parametrize(
    "above",
    [
        lambda d: d.shuffle(3).batch(4),
        lambda d: _of_lengths(d).shuffle(3).ragged_batch(4).map(lambda item: {"y": item["y"].to_tensor()}),
        lambda d: d.enumerate().map(lambda number, item: {"y": item["y"] + number}).batch(4),
        lambda d: d.map(lambda item: {"y": item["y"] + tf.random.uniform([], 0, 9, tf.int64)}).batch(4),
    ],
)
def test_what_is_not_one_for_one_is_read_again(above: Callable[[D], D]) -> None:
    data = TrainingData(lambda: {"trn": above(numbers(10))}, seed=5)
    assert data.mode == "replay"
    batches = [data.next_batch()["y"].numpy().tolist() for _ in range(7)]
    again = TrainingData(lambda: {"trn": above(numbers(10))}, seed=5)
    again.read("", data.write("")())
    expected = data.next_batch()["y"].numpy().tolist()
    assert again.next_batch()["y"].numpy().tolist() == expected and again.caveat is None
    assert batches[:3] != batches[3:6]


def test_one_that_was_made_before_datasets_is_called_is_not_called_exact() -> None:
    dataset = numbers(10, 1).batch(4)
    data = TrainingData(lambda: {"trn": dataset}, seed=5)
    assert data.mode == "restart" and "made outside of datasets()" in data.reason
    assert reshuffles(dataset)  # which is said of data to validate on


def test_records_by_index(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        write_records(f"{number}.tfrecord", list(range(10 * number, 10 * number + 7)))
    expected = [10 * number + value for number in range(3) for value in range(7)]
    features = {**Y, "all": tf.io.VarLenFeature(tf.int64)}
    items = list(readers.tfrecords("*.tfrecord", features=features, shuffle="index"))
    assert sorted(int(item["y"]) for item in items) == expected
    for item in items:
        assert item["all"].values.numpy().tolist() == [int(item["y"])] * (int(item["y"]) % 3 + 1)
    as_they_come = [labels(readers.tfrecords("*.tfrecord", features=Y, shuffle=how)) for how in (None, False)]
    assert as_they_come[0] == as_they_come[1] and len(as_they_come[0]) == 21
    first = readers.tfrecords("*.tfrecord", features=Y, shuffle="index", seed=1)
    assert sorted(labels(first)) == expected != labels(first)
    (table,) = cache.glob("tables/*")
    write_records("1.tfrecord", [100])
    assert sorted(labels(readers.tfrecords("*.tfrecord", features=Y, shuffle="index"))) == [
        *range(7),
        *range(20, 27),
        100,
    ]
    (other,) = cache.glob("tables/*")  # one of files as they were is deleted
    assert other != table
    whole = Path("2.tfrecord").read_bytes()
    Path("2.tfrecord").write_bytes(whole[:-30] + b"x" + whole[-29:])
    with pytest.raises(DataError, match=r"2\.tfrecord: not a whole TFRecord file \(corrupted record at"):
        readers.tfrecords("*.tfrecord", features=Y, shuffle="index")
    with pytest.raises(
        DataError, match='compressed with GZIP cannot be read in any order: shuffle="index" needs others'
    ):
        readers.tfrecords("0.tfrecord", features=Y, shuffle="index", compression="GZIP")
    with pytest.raises(DataError, match="shuffle='indx' is not known"):
        readers.tfrecords("0.tfrecord", features=Y, shuffle="indx")  # type: ignore[arg-type]


def test_images_by_index(tmp_path: Path) -> None:
    for number in range(5):
        folder = tmp_path / "images" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(tf.io.encode_png(np.full((2, 2, 1), 50 * number, np.uint8)).numpy())
    data = TrainingData(
        lambda: {"trn": readers.image_folder("images", size=(2, 2), channels=1, shuffle="index").batch(2)}, seed=1
    )
    assert data.describe() == "iterator" and data.cardinality == 3
    items = [
        (round(float(image[0, 0, 0]) * 5.1), int(label))
        for batch in (data.next_batch() for _ in range(3))
        for image, label in zip(batch["image"], batch["label"], strict=True)
    ]
    assert sorted(items) == [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)]


def test_the_places_of_records_are_found_once_and_anew_when_a_file_has_changed(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def read(**options: Any) -> list[int]:
        return sorted(labels(readers.tfrecords("a.tfrecord", features=Y, shuffle="index", **options)))

    write_records("a.tfrecord", [1, 2])
    assert read() == [1, 2]
    (first,) = cache.glob("tables/*")
    made = first.stat()
    assert read(seed=3) == [1, 2] and first.stat() == made
    os.utime("a.tfrecord", (1, 1))
    assert read() == [1, 2]
    (second,) = cache.glob("tables/*")
    assert second != first
    write_records("a.tfrecord", [])
    with pytest.raises(DataError, match=r"a\.tfrecord: holds no examples"):
        read()
    (tmp_path / "no directory").write_text("")
    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / "no directory"))
    with pytest.raises(
        DataError, match=r"cannot be kept in .*no directory/tables \(Not a directory\); PROTOTRAIN_CACHE"
    ):
        read()


def _csv(files: list[str], shuffle: Any) -> D:
    return readers.csv([f"{file}.csv" for file in files], features=Y, shuffle=shuffle)


def _records(files: list[str], shuffle: Any) -> D:
    return readers.tfrecords([f"{file}.tfrecord" for file in files], features=Y, shuffle=shuffle)


@pytest.mark.parametrize("read", [_csv, _records])
def test_other_files_are_other_data_however_many_examples_they_hold(read: Callable[..., D], tmp_path: Path) -> None:
    """A second call of `datasets()` must not bring what the first one has for validation among what is trained on."""
    for number in range(4):
        values = [10 * number + k for k in range(4)]
        Path(f"{number}.csv").write_text("y\n" + "".join(f"{value}\n" for value in values))
        write_records(f"{number}.tfrecord", values)
    splits = iter([["0", "1", "2", "3"], ["2", "3", "0", "1"], ["3", "2", "1", "0"]])

    def make() -> dict[str, D]:
        files = next(splits)
        return {"trn": read(files[:2], "index").batch(4), "vld": read(files[2:], None).batch(4)}

    said: list[str] = []
    data = TrainingData(make, seed=1, announce=said.append)
    assert any("gives other data whenever it is called" in line for line in said)
    trained = {int(value) // 10 for _ in range(2) for value in next(data.iterator)["y"]}
    validated = {int(value) // 10 for batch in data.datasets["vld"] for value in batch["y"]}
    assert len(trained) == len(validated) == 2 and not trained & validated
