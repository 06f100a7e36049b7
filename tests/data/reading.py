"""Reads, saves and resumes training data."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from prototrain.data.iterator import DataIterator
from prototrain.data.positions import training_data
from prototrain.data.source import Share


def data(make: Callable[[], Any], lines: list[str] | None = None, **options: Any) -> DataIterator:
    """Training data of a function that returns all datasets, or the training dataset."""

    def datasets() -> dict[str, Any]:
        found = make()
        return found if isinstance(found, dict) else {"trn": found}

    usual = {"batch_size": 1, "repeat": True, "share": Share(), "data_position": "auto"}
    announce = ([] if lines is None else lines).append
    return training_data(datasets, seed=5, announce=announce, **{**usual, **options})


def read(source: DataIterator, batches: int) -> list[Any]:
    """The first tensors of the next batches."""
    return [next(iter(source.next_batch().values())).numpy().tolist() for _ in range(batches)]


def save(source: DataIterator, path: Path) -> dict[str, Any]:
    return dict(json.loads(json.dumps(source.write(str(path))())))


def resume(make: Callable[[], Any], path: Path, meta: dict[str, Any], lines: list[str] | None = None) -> DataIterator:
    """The data of another process, at the saved position."""
    source = data(make, lines)
    source.read(str(path), meta)
    return source


def assert_exact(make: Callable[[], Any], directory: Path, stops: Collection[int], end: int = 12) -> DataIterator:
    """Check that a resumed run reads the same batches as an uninterrupted one."""
    source, places, batches = data(make), {}, []
    for step in range(end):
        if step in stops:
            places[step] = save(source, directory / f"{step}")
        batches += read(source, 1)
    batches += read(source, 4)
    for step, meta in places.items():
        again = resume(make, directory / f"{step}", meta)
        if step == min(stops):  # resumed twice
            assert read(again, 1) == batches[step : step + 1]
            step, meta = step + 1, save(again, directory / "again")
            again = resume(make, directory / "again", meta)
        assert read(again, 3) == batches[step : step + 3] and again.caveat is None, step
    failed = data(make)
    read(failed, 3)
    next(failed.iterator, None)  # for a step that fails
    failed.count(0, reads_ahead=True)
    assert read(failed, 2) == batches[3:5] and failed.caveat is None
    return source
