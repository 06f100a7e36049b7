"""Positions in the training data: saving, restoring, replaying and changed data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import readers
from prototrain.errors import CheckpointError
from tests.data.reading import assert_exact, data, read, resume, save

D = tf.data.Dataset
SPEC = {"x": tf.TensorSpec([], tf.int64)}


class Flow:
    """A tensorpack DataFlow: `reset_state` sets its generator."""

    def reset_state(self) -> None:
        self.random = np.random.default_rng(3)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"x": number} for number in self.random.permutation(8))


def numbers(examples: int = 20) -> D:
    """Batches of three of shuffled numbers, which do not divide evenly."""
    return D.range(examples).shuffle(7).map(lambda x: {"x": x}, num_parallel_calls=2).batch(3)


def generated(generator: Callable[[], Iterator[int]], batch: int = 4) -> D:
    rows = D.from_generator(lambda: ({"x": number} for number in generator()), output_signature=SPEC)
    return rows.batch(batch)


def rows() -> D:
    return generated(lambda: iter(range(8)), 1).unbatch()


def drawn() -> D:
    """A generator that continues its random numbers from one pass to the next."""
    rng = np.random.default_rng(3)
    return generated(lambda: rng.permutation(8))


def noisy() -> D:
    return rows().batch(4).map(lambda batch: {"x": batch["x"] * 1000 + tf.random.uniform([4], 0, 1000, tf.int64)})


def concatenated() -> D:
    """Two shuffled parts: the first one is dropped while the second one is read."""
    parts = [D.range(8 * index, 8 * index + 8).shuffle(5) for index in range(2)]
    return parts[0].concatenate(parts[1]).map(lambda x: {"x": x}).batch(3)


ITERATOR: dict[str, Callable[[], D]] = {
    "a shuffle": numbers,
    "a filter": lambda: numbers().unbatch().filter(lambda batch: batch["x"] % 3 > 0).batch(4).prefetch(3),
    "files one after the other": lambda: (
        D.range(8).concatenate(D.range(8, 14)).map(lambda x: {"x": x}).shuffle(5).batch(3)
    ),
    "two batches": lambda: D.range(6).shuffle(6).map(lambda x: {"x": x}).batch(3),
}
REPLAY: dict[str, Callable[[], D]] = {
    "concatenated": concatenated,
    "a shuffled generator": lambda: rows().shuffle(8).batch(4),
    "two shuffles": lambda: D.range(8).shuffle(8).map(lambda x: {"x": x}).shuffle(3).batch(4),
    "sampled": lambda: D.sample_from_datasets([rows(), rows()], stop_on_empty_dataset=False).batch(4),
    "repeated": lambda: rows().shuffle(8).repeat(2).take(12).batch(4),
    "a flow": lambda: readers.dataflow(Flow(), spec=SPEC).batch(4),
    "a generator that draws": drawn,
    "random ops": noisy,
}


# At 6 and 13, TensorFlow has dropped the end of a pass over the shuffle, and has not begun the next one.
@pytest.mark.parametrize("make", ITERATOR.values(), ids=ITERATOR)
def test_iterator_is_exact(make: Callable[[], D], tmp_path: Path) -> None:
    assert assert_exact(make, tmp_path, (0, 1, 4, 6, 7, 13), 14).mode == "iterator"


@pytest.mark.parametrize("make", REPLAY.values(), ids=REPLAY)
def test_replay_is_exact(make: Callable[[], D], tmp_path: Path) -> None:
    assert assert_exact(make, tmp_path, (7,), 8).mode == "replay"


def test_incomplete_state_is_replaced_by_an_earlier_one(tmp_path: Path) -> None:
    for examples, most in ((21, 0), (20, 6)):  # without and with a partial batch
        source, behind = data(lambda examples=examples: numbers(examples)), []  # type: ignore[misc]
        for _ in range(15):
            behind.append(save(source, tmp_path / "place")["behind"])
            read(source, 1)
        assert (max(behind) > 0) == (most > 0) and max(behind) <= most


def test_stop_during_replay_keeps_the_position(tmp_path: Path) -> None:
    source = data(drawn)
    read(source, 5)
    meta = save(source, tmp_path / "0")
    stopped = resume(drawn, tmp_path / "0", meta)
    answers = iter([False, False, False, True])
    assert not stopped.catch_up(lambda: next(answers))
    again = resume(drawn, tmp_path / "0", save(stopped, tmp_path / "0"))
    assert read(again, 4) == read(source, 4) and again.caveat is None


def test_differing_batches_are_detected(tmp_path: Path) -> None:
    total = count()
    changing = lambda: generated(lambda: iter([next(total) for _ in range(16)]))  # noqa: E731
    source, lines = data(changing), list[str]()
    read(source, 2)
    again = resume(changing, tmp_path / "0", save(source, tmp_path / "0"), lines)
    assert again.catch_up() and "gave other batches" in str(again.caveat)
    assert any(line.startswith("WARNING: the training data did not repeat") for line in lines)


def test_missing_batches_are_detected(tmp_path: Path) -> None:
    length = [16]
    make = lambda: generated(lambda: iter(range(length[0])))  # noqa: E731
    source = data(make)
    read(source, 3)
    length[0] = 8
    again = resume(make, tmp_path / "0", save(source, tmp_path / "0"))
    assert again.catch_up() and "fewer batches" in str(again.caveat)
    assert read(again, 1) == [[0, 1, 2, 3]]


def in_any_order(examples: int) -> D:
    return D.range(examples).map(lambda x: {"x": x}, num_parallel_calls=2, deterministic=False).batch(2)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (rows().batch(2), rows().batch(4), "batch size was"),
        (D.range(8).batch(2), D.range(10).batch(2), "batches per pass was 4 and is 5"),
        (D.range(8).batch(2), rows().batch(2).map(lambda batch: batch["x"]), "mode was iterator and is replay"),
        (D.range(8).batch(2), D.range(8).batch(2).map(lambda x: x), r"stage Map\(.*\) (is new|has become)"),
        (D.range(8).batch(2), D.range(8).map(lambda x: tf.cast(x, tf.int32)).batch(2), "elements was"),
    ],
)
def test_changed_data_is_refused_unless_allowed(before: D, after: D, words: str, tmp_path: Path) -> None:
    def named(dataset: D) -> D:
        return dataset if isinstance(dataset.element_spec, dict) else dataset.map(lambda x: {"x": x})

    source = data(lambda: named(before))
    read(source, 1)
    meta = save(source, tmp_path / "0")
    with pytest.raises(CheckpointError, match=rf"{words}.*allow-changed-data \(in Python: train\(allow_changed_d"):
        resume(lambda: named(after), tmp_path / "0", meta)
    allowed = data(lambda: named(after))
    allowed.allow_changes = True
    allowed.read(str(tmp_path / "0"), meta)
    assert "a new pass begins" in str(allowed.caveat) and len(read(allowed, 1)) == 1


def test_restart_accepts_changed_data(tmp_path: Path) -> None:
    again = resume(lambda: in_any_order(10), tmp_path / "0", save(data(lambda: in_any_order(8)), tmp_path / "0"))
    assert "starts again: ParallelMap has deterministic=False" in str(again.caveat)


def test_run_with_allowed_changes_resumes_exactly(tmp_path: Path) -> None:
    before = data(numbers)
    read(before, 3)
    source = data(lambda: numbers(23))
    source.allow_changes = True
    source.read(str(tmp_path / "0"), save(before, tmp_path / "0"))
    first = read(source, 4)
    source.count(-4)
    source.rewind()  # before anything was saved
    assert read(source, 6)[:4] == first
    meta = save(source, tmp_path / "1")
    again = resume(lambda: numbers(23), tmp_path / "1", meta)
    assert read(again, 12) == read(source, 12) and again.caveat is None


def test_changed_content_is_detected_in_the_first_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def make() -> D:
        return tf.data.TextLineDataset("lines").map(lambda line: {"x": tf.strings.length(line)}).batch(2)

    Path("lines").write_text("a\nbb\nccc\ndddd\n")
    source = data(make)
    read(source, 1)
    meta = save(source, tmp_path / "0")
    assert resume(make, tmp_path / "0", meta).caveat is None
    Path("lines").write_text("dddd\nccc\nbb\na\n")
    assert "its first batch is another one" in str(resume(make, tmp_path / "0", meta).caveat)
