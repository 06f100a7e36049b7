"""Data other than tf.data: names, order and position."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain.data.adapters import as_datasets
from prototrain.data.iterator import OTHER_FIRST_BATCH
from prototrain.errors import CheckpointError, DataError
from tests.data.reading import assert_exact, data, read, resume, save
from tests.readers.test_flows import Flow

CONFIG = {"model.batch_size": 4}
X = np.arange(22)


class Pairs(keras.utils.PyDataset):
    """Batches of (x, y)."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return np.full([4], index), np.full([4], 10 * index)


class Grows(Pairs):
    """Batches of integers, and then one of other numbers."""

    last: Any = 0.5

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x, y = super().__getitem__(index)
        return (x.astype(np.int8), y) if index < 4 else (np.full([4], self.last), y)


@pytest.mark.parametrize("last", [0.5, 300])
def test_later_batches_that_the_dtype_cannot_hold(last: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grows, "last", last)
    with pytest.raises(tf.errors.OpError, match=f"has the value {last}, which int8 cannot hold"):
        list(made(Grows(), "vld"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([None, "a"], "array of object cannot become a tensor"),
        (np.array(["2020-01-01"] * 8, "datetime64[D]"), "array of datetime64"),
        ([[1], [1, 2]], "list is no array"),
    ],
)
def test_arrays_that_are_no_tensors(value: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"dataset 'vld': an? .*{message}"):
        made({"x": value}, "vld")


def grain_map(seed: int = 3, batch: int = 4) -> Any:
    grain = pytest.importorskip("grain")
    return grain.MapDataset.source(X).seed(seed).shuffle().batch(batch, drop_remainder=True)


def made(value: Any, name: str = "trn") -> tf.data.Dataset:
    return as_datasets({name: value}, CONFIG)[name]


@pytest.mark.parametrize(
    ("value", "mode", "per_pass"),
    [
        (lambda: {"x": X, "y": {"z": X}}, "iterator", 5),
        (lambda: X, "iterator", 5),
        (grain_map, "iterator", 5),
        (lambda: grain_map().repeat(), "iterator", None),
        (lambda: grain_map().to_iter_dataset(), "iterator", None),
        (Pairs, "replay", 5),
    ],
    ids=["arrays", "array", "grain", "repeated grain", "iterable grain", "PyDataset"],
)
def test_resume_at_the_next_batch(value: Callable[[], Any], mode: str, per_pass: int | None, tmp_path: Path) -> None:
    source = assert_exact(lambda: made(value()), tmp_path, (5, 11))
    assert source.mode == mode and source.cardinality == per_pass
    batches = read(data(lambda: made(value())), 10)
    if mode == "iterator":  # each example at most once in a pass
        assert all(len(set(chain(*batches[begin : begin + 5]))) == 20 for begin in (0, 5))
    assert (batches[:5] == batches[5:]) == (value().__class__.__name__.endswith("IterDataset"))


def test_grain_position(tmp_path: Path) -> None:
    source = data(lambda: made(grain_map()))
    read(source, 3)
    meta = save(source, tmp_path / "0")
    assert meta["grain"] == '{"next_index": 3}' and list(tmp_path.iterdir()) == []
    assert resume(lambda: made(grain_map(seed=4)), tmp_path / "0", meta).caveat == OTHER_FIRST_BATCH
    for other in (lambda: grain_map(batch=5), lambda: grain_map().map(lambda x: x)):
        with pytest.raises(CheckpointError, match="the training data has changed"):
            resume(lambda other=other: made(other()), tmp_path / "0", meta)  # type: ignore[misc]
    with pytest.raises(CheckpointError, match="the position in the Grain dataset cannot be restored"):
        resume(lambda: made(grain_map()), tmp_path / "0", {**meta, "grain": "{}"})


@pytest.mark.parametrize("value", [grain_map, lambda: grain_map().to_iter_dataset()])
def test_grain_threads_do_not_add_up(value: Callable[[], Any]) -> None:
    def count() -> int:
        return sum(thread.name.startswith("grain") for thread in threading.enumerate())

    source = data(lambda: made(value()))
    read(source, 5)
    of_one_pass = count()
    read(source, 40)  # eight passes
    assert count() <= of_one_pass + 8


def test_held_out_data_keeps_its_order() -> None:
    found = list(made((X[:6], X[:6] / 2), "vld"))
    assert [batch["x"].numpy().tolist() for batch in found] == [[0, 1, 2, 3], [4, 5]]
    assert found[1]["y"].numpy().tolist() == [2.0, 2.5] and found[1]["y"].dtype == tf.float32
    assert [int(batch["x"][0]) for batch in made(Pairs(), "vld")] == [0, 1, 2, 3, 4]
    assert [batch["x"].numpy().tolist()[0] for batch in made(grain_map(), "vld")] == [
        int(batch[0]) for batch in grain_map()
    ]


def test_batches_are_dicts() -> None:
    texts = {"x": ["a", "b"], "tags": tf.ragged.constant([[1], [2, 3]])}
    (batch,) = made(texts, "vld")
    assert batch["x"].numpy().tolist() == [b"a", b"b"] and batch["tags"].to_list() == [[1], [2, 3]]
    flow = made(Flow([[np.ones([4, 2]), np.ones(4)], [np.ones([3, 2]), np.ones(3)]], 2))
    assert int(flow.cardinality()) == 2 and list(flow.element_spec) == ["x", "y"]
    assert [len(batch["x"]) for batch in flow] == [4, 3]
    weighted = made((X, {"a": X, "b": (X, X)}, X))
    assert list(weighted.element_spec) == ["x", "y", "sample_weight"] and list(weighted.element_spec["y"]) == ["a", "b"]
    assert list(made((X, None, X)).element_spec) == ["x", "sample_weight"]
    assert list(made(grain_map()).element_spec) == ["x"]
