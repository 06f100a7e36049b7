"""What `datasets` may give besides tf.data: the names of its batches, their order, and the place in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain.callbacks import SaveOnExit, Validation
from prototrain.data.adapters import as_datasets
from prototrain.data.stream import TrainingData
from prototrain.errors import CheckpointError, DataError
from tests.tiny import tiny_arrays, tiny_datasets, tiny_trainer, values

CONFIG = {"model.batch_size": 4}
X = np.arange(22)


class Flow:
    """A DataFlow as tensorpack has them: batches of lists."""

    def reset_state(self) -> None:
        pass

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[list[Any]]:
        return iter([[np.ones([4, 2]), np.ones(4)], [np.ones([3, 2]), np.ones(3)]])


class Pairs(keras.utils.PyDataset):
    """Batches of (x, y)."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return np.full([4], index), np.full([4], 10 * index)


def grain_map(seed: int = 3, batch: int = 4) -> Any:
    grain = pytest.importorskip("grain")
    return grain.MapDataset.source(X).seed(seed).shuffle().batch(batch, drop_remainder=True)


def grain_iter() -> Any:
    return grain_map().to_iter_dataset()


def made(value: Any, name: str = "trn") -> tf.data.Dataset:
    return as_datasets({name: value}, CONFIG)[name]


def data(value: Callable[[], Any]) -> TrainingData:
    return TrainingData(lambda: as_datasets({"trn": value()}, CONFIG), seed=5, announce=lambda line: None)


def read(source: TrainingData, batches: int) -> list[Any]:
    found: list[Any] = []
    source.catch_up()
    while len(found) < batches:
        batch = next(source.iterator, None)
        if batch is None:
            source.start_next_pass()
        else:
            found.append(batch["x"].numpy().tolist())
            source.count(1)
    return found


@pytest.mark.parametrize(
    ("value", "mode", "per_pass"),
    [
        (lambda: {"x": X, "y": {"z": X}}, "iterator", 5),
        (grain_map, "iterator", 5),
        (lambda: grain_map().repeat(), "iterator", None),
        (grain_iter, "iterator", None),
        (lambda: Pairs(), "replay", 5),
    ],
)
def test_a_run_goes_on_at_the_next_batch(value: Any, mode: str, per_pass: int | None, tmp_path: Path) -> None:
    source = data(value)
    assert source.mode == mode and source.cardinality == per_pass
    saved = []
    batches: list[Any] = []
    for step in range(12):  # more than two passes
        if step in (5, 11):
            prefix = str(tmp_path / f"{step}")
            saved.append((step, prefix, json.loads(json.dumps(source.write(prefix)()))))
        batches += read(source, 1)
    batches += read(source, 3)
    if value is not grain_iter:  # of which every pass has the same order, its own
        assert batches[:5] != batches[5:10]
    if mode == "iterator":  # each example at most once in a pass
        assert all(len(set(chain(*batches[begin : begin + 5]))) == 20 for begin in (0, 5))
    for step, prefix, meta in saved:
        again = data(value)
        read(again, 2)
        again.read(prefix, meta)
        assert again.caveat is None and read(again, 3) == batches[step : step + 3], step
        assert again.caveat is None
    failed = data(value)
    read(failed, 3)
    failed.count(0, reads_ahead=True)  # as behind a step that failed
    assert read(failed, 2) == batches[3:5]


def test_the_place_in_grain_is_small_and_of_this_dataset(tmp_path: Path) -> None:
    source = data(grain_map)
    read(source, 3)
    meta = source.write(str(tmp_path / "0"))()
    assert meta["grain"] == '{"next_index": 3}' and list(tmp_path.iterdir()) == []
    for other in (lambda: grain_map(seed=4), lambda: grain_map(batch=5), lambda: grain_map().map(lambda x: x)):
        with pytest.raises(CheckpointError, match="the training data has changed"):
            data(other).read(str(tmp_path / "0"), meta)
    with pytest.raises(CheckpointError, match="is no state of this Grain dataset"):
        data(grain_map).read(str(tmp_path / "0"), {**meta, "grain": "{}"})


def test_a_run_on_grain_ends_in_the_same_bits(experiment: Path) -> None:
    grain = pytest.importorskip("grain")
    arrays = tiny_arrays()

    def datasets() -> dict[str, Any]:
        rows = grain.MapDataset.range(40).map(lambda i: {name: array[i] for name, array in arrays.items()})
        return {"trn": rows.seed(1).shuffle().batch(8), "vld": rows.batch(8)}

    whole = tiny_trainer(datasets=datasets)
    whole.train([Validation().every(steps=5)], max_steps=9)
    assert whole.steps_per_epoch == 5 and whole.monitors.latest("vld/loss") > 0
    tiny_trainer(experiment, datasets=datasets).train([SaveOnExit()], max_steps=4)
    resumed = tiny_trainer(experiment, datasets=datasets)
    resumed.train([SaveOnExit()], max_steps=9)
    assert resumed.data.caveat is None and values(resumed) == values(whole)


def test_what_is_held_out_comes_in_its_order() -> None:
    found = list(made((X[:6], X[:6] / 2), "vld"))
    assert [batch["x"].numpy().tolist() for batch in found] == [[0, 1, 2, 3], [4, 5]]
    assert found[1]["y"].numpy().tolist() == [2.0, 2.5] and found[1]["y"].dtype == tf.float32
    assert [int(batch["x"][0]) for batch in made(Pairs(), "vld")] == [0, 1, 2, 3, 4]
    assert [batch["x"].numpy().tolist()[0] for batch in made(grain_map(), "vld")] == [
        int(batch[0]) for batch in grain_map()
    ]


def test_every_kind_gives_dicts() -> None:
    texts = {"x": ["a", "b"], "tags": tf.ragged.constant([[1], [2, 3]])}
    (batch,) = made(texts, "vld")
    assert batch["x"].numpy().tolist() == [b"a", b"b"] and batch["tags"].to_list() == [[1], [2, 3]]
    flow = made(Flow())
    assert int(flow.cardinality()) == 2 and list(flow.element_spec) == ["x", "y"]
    assert [len(batch["x"]) for batch in flow] == [4, 3]
    weighted = made((X, {"a": X, "b": (X, X)}, X))
    assert list(weighted.element_spec) == ["x", "y", "sample_weight"] and list(weighted.element_spec["y"]) == ["a", "b"]
    assert list(made((X, None, X)).element_spec) == ["x", "sample_weight"]
    assert list(made(grain_map()).element_spec) == ["x"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"x": X, "y": X[:3]}, "the arrays of dataset 'trn' must be of one length; they are of 'x': 22, 'y': 3"),
        ({}, "they are of no arrays"),
        ({"x": X[:0]}, "they are of 'x': 0"),
        ({"x": X[:3]}, "has 3 examples, too few for a model.batch_size of 4"),
        ({"x": 3}, "must be arrays of one length, not int"),
        ({"x": tf.sparse.from_dense([[1]])}, "a sparse tensor has no rows to take"),
        ((X, X, X, X), "a tuple of 4 in dataset 'trn' has no names"),
        (lambda: grain_map()[:0], "dataset 'trn' is empty"),
        (lambda: grain_map().map(lambda batch: batch[0]), "gives numbers, not arrays with an axis of examples"),
    ],
)
def test_what_makes_no_dataset(value: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        made(value() if callable(value) else value)


def test_a_service_may_have_moved(tmp_path: Path) -> None:
    """Another address, and other numbers of its datasets: the run goes on, with a new pass."""
    service = tf.data.experimental.service
    running: list[Any] = []

    def datasets() -> tf.data.Dataset:
        address = running[-1][0].target
        return tiny_datasets()["trn"].apply(service.distribute(service.ShardingPolicy.OFF, address))

    def start(datasets_before: int) -> None:
        dispatcher = service.DispatchServer()
        config = service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
        running.append((dispatcher, service.WorkerServer(config)))
        for number in range(datasets_before):
            service.register_dataset(dispatcher.target, tf.data.Dataset.range(number + 1))

    start(0)
    source = data(datasets)
    read(source, 2)
    meta = source.write(str(tmp_path / "0"))()
    start(2)
    moved = data(datasets)
    moved.read(str(tmp_path / "0"), meta)
    assert "starts again: it is live" in str(moved.caveat)
    assert len(read(moved, 2)) == 2
