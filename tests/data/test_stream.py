"""The training data's position: saved, restored, and gone back to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import Config, readers
from prototrain.data.adapters import as_datasets
from prototrain.data.stream import TrainingData


class Clock:
    """Advances by a second whenever it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def numbers(examples: int = 20) -> dict[str, tf.data.Dataset]:
    """Batches of three of shuffled numbers, which do not divide evenly."""
    dataset = tf.data.Dataset.range(examples).shuffle(7)
    return {"trn": dataset.map(lambda x: {"x": x}, num_parallel_calls=2).batch(3)}


def data(make: Callable[[], dict[str, tf.data.Dataset]] = numbers) -> TrainingData:
    return TrainingData(make, seed=5, announce=lambda line: None, clock=Clock())


def read(source: TrainingData, batches: int) -> list[Any]:
    source.catch_up()
    found: list[Any] = []
    while len(found) < batches:
        batch = next(source.iterator, None)
        if batch is None:
            source.start_next_pass()
        else:
            found.append(batch["x"].numpy().tolist())
            source.count(1)
    return found


def save(source: TrainingData, directory: Path) -> dict[str, Any]:
    """Write a part of a checkpoint."""
    directory.mkdir()
    return source.write(str(directory / "data"))()


def test_each_save_takes_a_state_of_its_own(tmp_path: Path) -> None:
    source = data(lambda: numbers(21))  # which has no partial batch
    for index in range(5):
        read(source, 4)
        assert save(source, tmp_path / f"{index}")["behind"] == 0


def test_a_state_that_is_not_whole_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    source = data()
    metas = []
    for index in range(15):
        metas.append(save(source, tmp_path / f"{index}"))
        read(source, 1)
        shutil.rmtree(tmp_path / f"{index}")  # what serves again is in memory
    assert 0 < max(meta["behind"] for meta in metas) < 7  # batches of a pass


def test_a_run_that_went_on_with_other_data_is_resumed_exactly(tmp_path: Path) -> None:
    before = data()
    read(before, 3)
    meta = save(before, tmp_path / "before")
    source = data(lambda: numbers(23))
    source.allow_changes = True
    source.read(str(tmp_path / "before" / "data"), meta)
    assert source.caveat is not None and "23" in source.caveat
    first = read(source, 4)
    source.count(-4)
    source.rewind()  # before anything was saved
    assert read(source, 4) == first
    meta = save(source, tmp_path / "between")
    read(source, 2)
    meta = save(source, tmp_path / "after")
    expected = read(source, 12)
    source.count(-12)
    source.rewind()
    assert read(source, 12) == expected
    other = data(lambda: numbers(23))
    other.read(str(tmp_path / "after" / "data"), meta)
    assert other.caveat is None
    assert read(other, 12) == expected


def concatenated() -> dict[str, tf.data.Dataset]:
    """Two shuffled parts: the first one is dropped while the second one is read."""
    parts = [tf.data.Dataset.range(8 * index, 8 * index + 8).shuffle(5) for index in range(2)]
    return {"trn": parts[0].concatenate(parts[1]).map(lambda x: {"x": x}).batch(3)}


def filtered() -> dict[str, tf.data.Dataset]:
    return {"trn": numbers()["trn"].unbatch().filter(lambda batch: batch["x"] % 3 > 0).batch(4).prefetch(3)}


@pytest.mark.parametrize("make", [numbers, concatenated, filtered])
def test_every_position_is_exact(make: Callable[[], dict[str, tf.data.Dataset]], tmp_path: Path) -> None:
    """Also those at which TensorFlow has dropped the end of a pass, and has not begun the next one."""
    source, metas, batches = data(make), [], []
    for index in range(16):
        metas.append(save(source, tmp_path / f"{index}"))
        batches += read(source, 1)
    batches += read(source, 16)
    for index, meta in [*enumerate(metas)][1::3]:
        other = data(make)
        other.read(str(tmp_path / f"{index}" / "data"), meta)
        read(other, 1)
        meta = save(other, tmp_path / f"{index} and one")  # resumed twice
        other = data(make)
        other.read(str(tmp_path / f"{index} and one" / "data"), meta)
        assert read(other, 15) == batches[index + 1 : index + 16], f"after {index} batches"
        assert other.caveat is None


def two_batches() -> dict[str, tf.data.Dataset]:
    return {"trn": tf.data.Dataset.range(6).shuffle(6).map(lambda x: {"x": x}).batch(3)}


@pytest.mark.parametrize("make", [two_batches, concatenated])
def test_going_back_to_before_a_shuffle_has_begun(make: Callable[[], dict[str, tf.data.Dataset]]) -> None:
    source = data(make)
    batches = 12 if source.endless else 5  # of one pass
    expected = read(source, batches)
    source.count(-batches)
    source.rewind()
    assert read(source, batches) == expected


def of_lines() -> tf.data.Dataset:
    return tf.data.TextLineDataset("lines").map(tf.strings.length).batch(2)


def of_grain() -> Any:
    grain = pytest.importorskip("grain")
    lengths = [np.int32(len(line)) for line in Path("lines").read_text().splitlines()]
    return grain.MapDataset.source([{"x": length} for length in lengths]).batch(2)


def by_index() -> tf.data.Dataset:
    return (
        readers.csv("lines", features={"x": ("string", [])}, header=["x"], shuffle="index")
        .map(lambda item: tf.strings.length(item["x"]))
        .batch(2)
    )


@pytest.mark.parametrize("make", [of_lines, of_grain, by_index])
def test_other_content_of_the_same_length_shows_in_the_first_batch(
    make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run reads that batch anyway."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / "cache"))

    def datasets() -> dict[str, Any]:
        found = make()
        named = found.map(lambda x: {"x": x}) if isinstance(found, tf.data.Dataset) else found
        return as_datasets({"trn": named}, Config())

    caveats = []
    for content in ("a\nbb\nccc\ndddd\n", "a\nbb\nccc\ndddd\n", "dddd\nccc\nbb\na\n"):
        Path("lines").write_text(content)
        other = data(datasets)
        assert other.mode == "iterator"
        if not caveats:
            read(other, 1)
            meta = save(other, tmp_path / "state")
        other.read(str(tmp_path / "state" / "data"), meta)
        caveats.append(other.caveat)
    assert caveats[:2] == [None, None] and "its first batch is another one" in str(caveats[2])
