"""Data that is built again: from one call, under one state of the random generators, and found out when it differs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import readers
from prototrain.data.stream import TrainingData
from prototrain.errors import CheckpointError, DataError
from prototrain.system import waiting
from tests.data.test_stream import read, save

Datasets = dict[str, tf.data.Dataset]


def generated(generator: Callable[[], Iterator[int]], *, length: int = 2) -> Datasets:
    dataset = tf.data.Dataset.from_generator(generator, output_signature=tf.TensorSpec([], tf.int64))
    return {"trn": dataset.batch(length).map(lambda x: {"x": x})}


def data(make: Callable[[], Datasets], lines: list[str] | None = None) -> TrainingData:
    said: list[str] = [] if lines is None else lines
    return TrainingData(make, seed=5, announce=said.append)


def resumed(make: Callable[[], Datasets], stopped: TrainingData, directory: Path) -> TrainingData:
    meta = save(stopped, directory / "saved")
    other = data(make)
    other.read(str(directory / "saved" / "data"), meta)
    other.catch_up()
    return other


def split() -> Datasets:
    """A random split, which a generator of Python draws in one order and NumPy in another."""
    numbers = np.random.permutation(20)
    random.shuffle(examples := numbers[:16].tolist())
    trn = tf.data.Dataset.from_generator(lambda: iter(examples), output_signature=tf.TensorSpec([], tf.int64))
    return {name: d.batch(4).map(lambda x: {"x": x}) for name, d in {"trn": trn, "vld": _slices(numbers[16:])}.items()}


def _slices(numbers: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(numbers)


def test_validation_examples_never_come_among_those_to_train_on() -> None:
    np.random.seed(77)
    source = data(split)
    held_out = set(next(iter(source.datasets["vld"]))["x"].numpy().tolist())
    np.random.seed(78)
    seen = {number for batch in read(source, 12) for number in batch}  # three passes
    assert source.mode == "replay" and len(seen) == 16 and not seen & held_out


def test_a_split_that_is_another_one_in_every_call_is_made_once() -> None:
    def make() -> Datasets:
        numbers = np.random.default_rng().permutation(20)
        trn = _slices(numbers[:16]).shuffle(4).shuffle(4)  # which is replayed
        return {
            "trn": trn.batch(4).map(lambda x: {"x": x}),
            "vld": _slices(numbers[16:]).batch(1).map(lambda x: {"x": x}),
        }

    lines: list[str] = []
    source = data(make, lines)
    held_out = {int(batch["x"][0]) for batch in source.datasets["vld"]}
    seen = {number for batch in read(source, 12) for number in batch}
    assert len(seen) == 16 and not seen & held_out
    assert [line for line in lines if "gives other data whenever it is called" in line]


def test_the_generators_of_the_run_are_left_as_they_are() -> None:
    source = data(split)
    random.seed(3), np.random.seed(3)
    read(source, 9)
    drawn = random.random(), np.random.random()
    random.seed(3), np.random.seed(3)
    assert drawn == (random.random(), np.random.random())


def test_a_generator_that_draws_anew_from_its_second_pass_on_is_found_out(tmp_path: Path) -> None:
    def make() -> Datasets:
        passes = count()
        order = np.random.default_rng()

        def generate() -> Iterator[int]:
            yield from order.permutation(10) if next(passes) else range(10)

        return generated(generate)

    whole = count()

    def goes_on() -> Datasets:
        return generated(lambda: iter([next(whole) for _ in range(10)]))  # counts through the whole process

    for number, each in enumerate((goes_on, make)):
        stopped = data(each)
        read(stopped, 2)
        meta = save(stopped, tmp_path / f"{number}")
        lines: list[str] = []
        other = data(each, lines)
        other.read(str(tmp_path / f"{number}" / "data"), meta)
        other.catch_up()
        expected = other.caveat is not None
        assert expected == (each is goes_on)
        assert any("WARNING: the training data did not repeat" in line for line in lines) == expected or other.caveat


def test_fewer_batches_are_found_out(tmp_path: Path) -> None:
    length = [10]
    make = lambda: generated(lambda: iter(range(length[0])))  # noqa: E731
    stopped = data(make)
    read(stopped, 4)
    length[0] = 6
    other = resumed(make, stopped, tmp_path)
    assert other.caveat is not None and "fewer batches" in other.caveat
    assert read(other, 1) == [[0, 1]]


@pytest.mark.parametrize(
    ("make", "other", "words"),
    [
        (lambda: generated(lambda: iter(range(9))), lambda: generated(lambda: iter(range(9)), length=3), "batch size"),
        (lambda: numbers_in_any_order(4), lambda: numbers_in_any_order(5), None),
    ],
)
def test_other_batches_are_refused_unless_no_place_is_kept(make: Any, other: Any, words: Any, tmp_path: Path) -> None:
    meta = save(data(make), tmp_path / "saved")
    after = data(other)
    if words is None:
        after.read(str(tmp_path / "saved" / "data"), meta)
        assert after.caveat is not None and "starts again" in after.caveat
        return
    for mode in ("replay", "restart"):
        meta["fingerprint"]["mode"] = mode
        with pytest.raises(CheckpointError, match=rf"{words}.*allow-changed-data \(in Python: train\(allow_changed_d"):
            after.read(str(tmp_path / "saved" / "data"), meta)


def numbers_in_any_order(examples: int) -> Datasets:
    numbers = tf.data.Dataset.range(examples).map(lambda x: x, num_parallel_calls=2, deterministic=False)
    return {"trn": numbers.batch(2).map(lambda x: {"x": x})}


# Waiting.


def test_a_first_batch_that_takes_long_is_waited_for_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.01)
    go_on = threading.Event()
    lines: list[str] = []

    def announce(line: str) -> None:
        lines.append(line)
        if "first batch" in line:
            go_on.set()

    def generate() -> Iterator[int]:
        go_on.wait(30)
        yield from range(4)

    TrainingData(lambda: generated(generate), seed=5, announce=announce)
    assert "waiting for the first batch of the training data ..." in lines


def test_data_that_the_run_itself_makes() -> None:
    ready, spec = threading.Event(), {"x": tf.TensorSpec([], tf.int64)}

    class Played:
        made = 0

        def __iter__(self) -> Iterator[dict[str, int]]:
            assert ready.wait(30)
            while True:
                self.made += 1
                yield {"x": self.made}

    flow = Played()

    def make() -> TrainingData:
        return TrainingData(
            lambda: {"trn": readers.dataflow(flow, spec=spec, live=True).batch(2)},
            seed=5,
            announce=print,
            batch_size=3,
        )

    source = make()  # does not wait for anything
    assert source.describe() == "restart (it is live)"
    assert source.is_made_up and source.first_batch["x"].numpy().tolist() == [0] * 3
    ready.set()
    assert source.next_batch()["x"].numpy().tolist() == [1, 2]
    source.stop_reading()
    with pytest.raises(DataError, match="Played is live, so it cannot be looked at"):
        readers.dataflow(flow, live=True)


def test_a_first_batch_that_fails_says_so() -> None:
    def generate() -> Iterator[int]:
        raise ValueError("no such table")
        yield 1

    with pytest.raises(DataError, match="no such table"):
        data(lambda: generated(generate))
