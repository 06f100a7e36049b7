"""Passes over data that Python code makes: how often `datasets()` is called, and what a resume gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import readers
from prototrain.data.stream import TrainingData

SPEC = {"x": tf.TensorSpec([], tf.int64)}


class Flow:
    """As tensorpack's: its generator is set by `reset_state`."""

    resets = 0

    def reset_state(self) -> None:
        self.resets += 1
        self.random = np.random.default_rng(3)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"x": number} for number in self.random.permutation(8))


def training(make: Callable[[], tf.data.Dataset], said: list[str] | None = None) -> tuple[TrainingData, list[int]]:
    calls: list[int] = []

    def datasets() -> dict[str, tf.data.Dataset]:
        calls.append(1)
        return {"trn": make().batch(4)}

    announce = (lambda line: None) if said is None else said.append
    return TrainingData(datasets, seed=5, announce=announce), calls


def rows() -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(lambda: ({"x": number} for number in range(8)), output_signature=SPEC)


def batches(data: TrainingData, number: int) -> list[list[int]]:
    return [data.next_batch()["x"].numpy().tolist() for _ in range(number)]


def test_a_generator_is_made_once_for_all_passes() -> None:
    data, calls = training(rows)
    before = len(calls)
    assert batches(data, 12) == [[0, 1, 2, 3], [4, 5, 6, 7]] * 6 and len(calls) == before == 2


def drawn() -> tf.data.Dataset:
    """A generator that keeps its random numbers from one pass to the next."""
    rng = np.random.default_rng(3)
    generate = lambda: ({"x": number} for number in rng.permutation(8))  # noqa: E731
    return tf.data.Dataset.from_generator(generate, output_signature=SPEC)


def noisy() -> tf.data.Dataset:
    def noise(row: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"x": row["x"] * 1000 + tf.random.uniform([], 0, 1000, tf.int64)}

    return rows().map(noise)


def test_each_pass_over_a_shuffled_generator_has_another_order() -> None:
    data, calls = training(lambda: rows().shuffle(8))
    found = batches(data, 8)
    assert found[0] != found[2] != found[4] and len(calls) == 2


@pytest.mark.parametrize("done", [3, 7])
@pytest.mark.parametrize(
    "make",
    [
        rows,
        lambda: rows().shuffle(8),
        lambda: tf.data.Dataset.range(8).shuffle(8).map(lambda x: {"x": x}).shuffle(3),
        lambda: tf.data.Dataset.sample_from_datasets([rows(), rows()], stop_on_empty_dataset=False),
        lambda: rows().shuffle(3).batch(2).shuffle(4).unbatch(),
        lambda: rows().shuffle(8).repeat(2).take(12),
        lambda: readers.dataflow(Flow(), spec=SPEC),
        drawn,
        noisy,
        lambda: drawn().shuffle(3),
    ],
    ids=[
        *("generator", "shuffled generator", "two shuffles", "sampled", "generator with two shuffles", "repeated"),
        *("flow", "generator that draws", "random ops", "shuffled generator that draws"),
    ],
)
def test_a_pass_is_the_same_in_a_resumed_process(make: Callable[[], tf.data.Dataset], done: int) -> None:
    data, _ = training(make)
    batches(data, done)
    meta = data.write("")()
    resumed, _ = training(make)
    resumed.read("", meta)
    assert batches(resumed, 8) == batches(data, 8) and resumed.caveat is None


@pytest.mark.parametrize("make", [rows, lambda: rows().shuffle(8), drawn, lambda: readers.dataflow(Flow(), spec=SPEC)])
def test_a_failed_step_is_repeated_with_its_batch(make: Callable[[], tf.data.Dataset]) -> None:
    whole, data = training(make)[0], training(make)[0]
    expected = batches(whole, 8)
    assert batches(data, 5) == expected[:5]
    next(data.iterator)  # for a step that fails
    data.count(0, reads_ahead=True)
    data.rewind()
    assert batches(data, 3) == expected[5:] and data.caveat is None


def test_a_stop_while_earlier_passes_are_read_keeps_the_place() -> None:
    data, _ = training(drawn)
    batches(data, 5)
    meta = data.write("")()
    resumed, _ = training(drawn)
    resumed.read("", meta)
    answers = iter([False, False, False, True])
    assert not resumed.catch_up(lambda: next(answers))
    again, _ = training(drawn)
    again.read("", resumed.write("")())
    assert batches(again, 4) == batches(data, 4) and again.caveat is None


def test_a_flow_is_reset_once_and_then_goes_on() -> None:
    flows = []

    def make() -> tf.data.Dataset:
        flows.append(Flow())
        return readers.dataflow(flows[-1], spec=SPEC)

    data, _ = training(make)
    found = batches(data, 6)
    assert found[:2] != found[2:4] != found[4:] and flows[-1].resets == 1
