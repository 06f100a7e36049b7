"""Calls of `datasets()`: passes, seeds, workers and moved files."""

from __future__ import annotations

import gc
import random
import shutil
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import readers
from prototrain.data.iterator import OTHER_SIZES, DataIterator
from prototrain.data.source import Share, bind_worker, shard_for_worker
from prototrain.errors import CheckpointError, ConfigError, DataError
from tests.data.reading import data, read, resume, save
from tests.data.test_adapters import Pairs, made
from tests.data.test_positions import SPEC, generated, rows

D = tf.data.Dataset
X = {"x": ("float32", [])}
calls = count()


@pytest.mark.parametrize("make", [lambda: rows().batch(4), lambda: rows().shuffle(8).batch(4)])
def test_python_data_is_built_once(make: Callable[[], D]) -> None:
    calls: list[int] = []
    source = data(lambda: (calls.append(1), make())[1])
    found = read(source, 12)
    assert len(calls) == 2 and len({str(found[begin : begin + 2]) for begin in (0, 2, 4)}) in (1, 3)


def split() -> dict[str, D]:
    """A random split, which a generator of Python draws in one order and NumPy in another."""
    numbers = np.random.permutation(20)
    random.shuffle(examples := numbers[:16].tolist())
    vld = D.from_tensor_slices(numbers[16:]).batch(4).map(lambda x: {"x": x})
    return {"trn": generated(lambda: iter(examples)), "vld": vld}


def other_split() -> dict[str, D]:
    """A split that differs in each call."""
    numbers = np.random.default_rng().permutation(20)
    parts = {"trn": D.from_tensor_slices(numbers[:16]).shuffle(4).shuffle(4), "vld": D.from_tensor_slices(numbers[16:])}
    return {name: part.batch(4).map(lambda x: {"x": x}) for name, part in parts.items()}


def other_files() -> dict[str, D]:
    """Files that are divided in another way in each call."""
    for number in range(5):
        Path(f"{number}.csv").write_text("x\n" + "".join(f"{4 * number + row}\n" for row in range(4)))
    files = deque(f"{number}.csv" for number in range(5))
    files.rotate(next(calls))
    vld = readers.csv(files.popleft(), features=X).batch(4)
    return {"trn": readers.csv(files, features=X, shuffle="index").batch(4), "vld": vld}


@pytest.mark.parametrize("make", [split, other_split, other_files])
def test_validation_examples_are_never_trained_on(
    make: Callable[[], dict[str, D]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.random.seed(77)
    lines: list[str] = []
    source = data(make, lines)
    held_out = set(next(iter(source.datasets["vld"]))["x"].numpy().tolist())
    random.seed(3), np.random.seed(3)
    seen = {number for batch in read(source, 12) for number in batch}  # three passes
    drawn = random.random(), np.random.random()
    assert source.mode == "replay" and len(seen) == 16 and not seen & held_out
    assert any("returns different data in each call" in line for line in lines) == (make is not split)
    random.seed(3), np.random.seed(3)
    assert drawn == (random.random(), np.random.random())  # the run's own generators are left as they are


def test_failing_first_batch_is_an_error() -> None:
    def generate() -> Iterator[int]:
        raise ValueError("no such table")
        yield 1

    with pytest.raises(DataError, match="no such table"):
        data(lambda: generated(generate))


def test_live_data() -> None:
    ready = threading.Event()

    class Played:
        made = 0

        def __iter__(self) -> Iterator[dict[str, int]]:
            assert ready.wait(30)
            while True:
                self.made += 1
                yield {"x": self.made}

    flow = Played()
    source = data(lambda: readers.dataflow(flow, spec=SPEC, live=True).batch(2), batch_size=3)
    assert source.describe() == "restart (it is live)"  # and it did not wait
    assert source.is_live_data and source.first_batch["x"].numpy().tolist() == [0] * 3
    ready.set()
    assert read(source, 1) == [[1, 2]]
    source.stop_reading()
    with pytest.raises(DataError, match="Played is live, so it cannot be looked at"):
        readers.dataflow(flow, live=True)


def text_files(directory: Path) -> list[str]:
    """Five files with four to eight lines each, such as ``2-0`` in the third one."""
    names = []
    for number in range(5):
        path = directory / f"{number}.txt"
        path.write_text("".join(f"{number}-{line}\n" for line in range(4 + number)))
        names.append(str(path))
    return names


def share_of(names: list[str], share: Share, shuffle: int = 1) -> DataIterator:
    def make() -> dict[str, D]:
        lines = tf.data.TextLineDataset(names).map(lambda line: {"line": line}).shuffle(shuffle)
        return shard_for_worker({"trn": lines.batch(6)}, share, 6 // share.count)

    return data(make, share=share)


def test_datasets_with_a_worker_argument() -> None:
    def place(worker: Share) -> Any:
        return f"{worker.index} of {worker.count}"

    makes: list[tuple[Callable[..., Any], str]] = [
        (lambda: "all", "all"),
        (lambda batch_size=8: f"all {batch_size}", "all 8"),
        (place, "1 of 2"),
        (lambda worker=None: place(worker), "1 of 2"),
    ]
    assert [bind_worker(make, Share(1, 2, "none"))() for make, _ in makes] == [given for _, given in makes]
    for sharding in ("batch", "files"):
        with pytest.raises(ConfigError, match=rf'model.data_sharding is "{sharding}", and datasets\(worker\) gives'):
            bind_worker(place, Share(1, 2, sharding))
        assert bind_worker(place, Share(sharding=sharding))() == "0 of 1"


def test_files_are_divided_among_workers(tmp_path: Path) -> None:
    names = text_files(tmp_path)
    first, second = (read(share_of(names, Share(index, 2, "files")), 9) for index in range(2))
    files = [{line[:1] for batch in batches for line in batch} for batches in (first, second)]
    assert files == [{b"0", b"2", b"4"}, {b"1", b"3"}]
    assert second[:2] == [[b"1-0", b"1-1", b"1-2"], [b"1-3", b"1-4", b"3-0"]]
    assert second[4:8] == second[:4]
    with pytest.raises(DataError, match=r"does not come from enough files .*datasets\(worker\) and set it to \"none\""):
        shard_for_worker({"trn": D.range(9).batch(3)}, Share(0, 2, "files"), 3)


def test_worker_replays_its_share(tmp_path: Path) -> None:
    names, share = text_files(tmp_path), Share(1, 2, "files")
    whole = read(share_of(names, share, shuffle=8), 14)
    chiefs = share_of(names, Share(0, 2, "files"), shuffle=8)
    read(chiefs, 6)
    meta = save(chiefs, tmp_path / "chief")

    again = share_of(names, share, shuffle=8)
    again.read("not used", meta)
    assert read(again, 5) == whole[6:11] and again.caveat is None and again.total == 11

    changed = share_of(names, share, shuffle=8)
    with pytest.raises(CheckpointError, match="the training data has changed: seed was 1 and is 5"):
        changed.read("not used", {**meta, "fingerprint": {**meta["fingerprint"], "seed": 1}})

    third = share_of(names, Share(1, 3, "files"), shuffle=8)
    third.read("not used", meta)
    assert third.total == 6 and third.caveat is not None
    assert "each of 3 workers reads its own files of the training data, and not as before (each" in third.caveat


def write(directory: Path, rows: int = 20) -> Path:
    directory.mkdir(parents=True)
    for number in range(3):
        numbers = range(100 * number, 100 * number + rows)
        (directory / f"{number}.csv").write_text("x\n" + "".join(f"{one:04}\n" for one in numbers))
    return directory


def files(directory: Path) -> list[str]:
    return sorted(map(str, directory.glob("*.csv")))


def of_lines(lines: D) -> D:
    return lines.filter(lambda line: line != "x").map(lambda line: {"x": tf.strings.to_number(line)}).batch(4)


FILES: dict[str, tuple[Callable[[Path], D], bool]] = {
    "by index": (lambda place: readers.csv(files(place), features=X, shuffle="index").batch(4), True),
    "shuffled": (lambda place: of_lines(D.list_files(f"{place}/*.csv").interleave(tf.data.TextLineDataset)), True),
    # The saved state of these has the names.
    "one after the other": (lambda place: of_lines(tf.data.TextLineDataset(files(place))), False),
    "in turns": (lambda place: of_lines(D.from_tensor_slices(files(place)).interleave(tf.data.TextLineDataset)), False),
}


@pytest.mark.parametrize(("make", "may_move"), FILES.values(), ids=FILES)
def test_moved_and_changed_files(make: Callable[[Path], D], may_move: bool, tmp_path: Path) -> None:
    there, here = write(tmp_path / "there"), tmp_path / "a" / "here"
    before = data(lambda: make(there))
    read(before, 6)
    meta = save(before, tmp_path / "place")
    expected = read(before, 20)
    shutil.copytree(there, here)
    (there / "2.csv").write_text((there / "2.csv").read_text().removesuffix("0219\n") + "02190\n")
    after = resume(lambda: make(there), tmp_path / "place", meta)
    assert after.caveat == OTHER_SIZES and after.offset == 6  # a record may have been repaired
    shutil.rmtree(there)
    if may_move:
        after = resume(lambda: make(here), tmp_path / "place", meta)
        assert read(after, 20) == expected and after.caveat is None
    else:
        with pytest.raises(CheckpointError, match="its files have other names, or are in another directory"):
            resume(lambda: make(here), tmp_path / "place", meta)


def test_data_of_earlier_passes_is_freed() -> None:
    alive = weakref.WeakSet[Pairs]()

    def make() -> D:
        alive.add(pairs := Pairs())
        return made(pairs)

    read(data(make), 60)  # twelve passes, each of which calls `datasets()`
    gc.collect()
    assert 0 < len(alive) < 6
