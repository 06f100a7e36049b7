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


def test_each_pass_over_a_shuffled_generator_has_another_order() -> None:
    data, _ = training(lambda: rows().shuffle(8))
    found = batches(data, 8)
    assert found[0] != found[2] != found[4]


@pytest.mark.parametrize("done", range(1, 8))
@pytest.mark.parametrize(
    "make",
    [
        rows,
        lambda: rows().shuffle(8),
        lambda: tf.data.Dataset.range(8).shuffle(8).map(lambda x: {"x": x}).shuffle(3),
        lambda: tf.data.Dataset.sample_from_datasets([rows(), rows()], stop_on_empty_dataset=False),
    ],
    ids=["generator", "shuffled generator", "two shuffles", "sampled"],
)
def test_a_pass_is_the_same_in_a_resumed_process(make: Callable[[], tf.data.Dataset], done: int) -> None:
    data, _ = training(make)
    batches(data, done)
    meta = data.write("")()
    resumed, _ = training(make)
    resumed.read("", meta)
    assert batches(resumed, 8) == batches(data, 8) and resumed.caveat is None


def test_a_flow_is_reset_once_and_then_goes_on() -> None:
    flows = []

    def make() -> tf.data.Dataset:
        flows.append(Flow())
        return readers.dataflow(flows[-1], spec=SPEC)

    data, _ = training(make)
    found = batches(data, 6)
    assert found[:2] != found[2:4] != found[4:] and flows[-1].resets == 1


def test_the_same_batches_in_each_pass_are_told_once() -> None:
    said: list[str] = []
    data, _ = training(rows, said)
    batches(data, 9)
    assert len([line for line in said if "begins each pass with the same batch" in line]) == 1
    said.clear()
    data, _ = training(lambda: rows().shuffle(8), said)
    batches(data, 9)
    assert not said
