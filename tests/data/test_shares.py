from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from prototrain.data.shares import Share, for_worker, shared_out
from prototrain.data.stream import TrainingData
from prototrain.errors import CheckpointError, ConfigError, DataError


def text_files(directory: Path) -> list[str]:
    """Five files with four to eight lines each, such as ``2-0`` in the third one."""
    names = []
    for number in range(5):
        path = directory / f"{number}.txt"
        path.write_text("".join(f"{number}-{line}\n" for line in range(4 + number)))
        names.append(str(path))
    return names


def share_of(names: list[str], share: Share, shuffle: int = 1) -> TrainingData:
    def make() -> dict[str, tf.data.Dataset]:
        lines = tf.data.TextLineDataset(names).map(lambda line: {"line": line}).shuffle(shuffle)
        return shared_out({"trn": lines.batch(6)}, share, 6 // share.count)

    return TrainingData(make, seed=1, announce=lambda text: None, share=share)


def read(data: TrainingData, batches: int) -> list[list[str]]:
    return [[line.decode() for line in data.next_batch()["line"].numpy()] for _ in range(batches)]


@pytest.mark.parametrize(
    ("make", "sharding", "given"),
    [
        (lambda: "all", "batch", "all"),
        (lambda batch_size=8: f"all {batch_size}", "none", "all 8"),
        (lambda worker: f"{worker.index} of {worker.count}", "none", "1 of 2"),
        (lambda worker=None: f"{worker.index} of {worker.count}", "none", "1 of 2"),
        (lambda worker: "", "batch", None),
        (lambda worker: "", "files", None),
    ],
)
def test_datasets_that_take_a_worker(make: Callable[..., Any], sharding: str, given: str | None) -> None:
    share = Share(1, 2, sharding)
    if given is not None:
        assert for_worker(make, share)() == given  # type: ignore[comparison-overlap]
        return
    with pytest.raises(ConfigError, match=f'model.data_sharding is "{sharding}", and datasets\\(worker\\) gives each'):
        for_worker(make, share)
    assert for_worker(make, Share(sharding=sharding))() == ""  # type: ignore[comparison-overlap]


def test_files_are_divided_and_each_share_repeats(tmp_path: Path) -> None:
    names = text_files(tmp_path)
    first, second = (read(share_of(names, Share(index, 2, "files")), 9) for index in range(2))
    files = [{line[0] for batch in batches for line in batch} for batches in (first, second)]
    assert files == [{"0", "2", "4"}, {"1", "3"}]
    assert second[:2] == [["1-0", "1-1", "1-2"], ["1-3", "1-4", "3-0"]]
    assert second[4:8] == second[:4]
    assert shared_out({"trn": tf.data.Dataset.range(3)}, Share(0, 1, "files"), 3)["trn"].cardinality() == 3


def test_what_has_no_files_cannot_be_divided_by_them() -> None:
    with pytest.raises(DataError, match=r"does not come from files .*set model\.data_sharding to \"none\""):
        shared_out({"trn": tf.data.Dataset.range(9).batch(3)}, Share(0, 2, "files"), 3)


def test_a_worker_reads_its_own_share_again_up_to_the_place_of_the_chief(tmp_path: Path) -> None:
    names, share = text_files(tmp_path), Share(1, 2, "files")
    whole = read(share_of(names, share, shuffle=8), 14)
    chiefs = share_of(names, Share(0, 2, "files"), shuffle=8)
    read(chiefs, 6)
    meta = chiefs.write(str(tmp_path / "chief"))()

    again = share_of(names, share, shuffle=8)
    again.read("not used", meta)
    assert read(again, 5) == whole[6:11] and again.caveat is None and again.total == 11

    changed = share_of(names, share, shuffle=8)
    changed.fingerprint["seed"] = 2
    with pytest.raises(CheckpointError, match="the training data has changed: seed was 1 and is 2"):
        changed.read("not used", meta)

    third = share_of(names, Share(1, 3, "files"), shuffle=8)
    third.read("not used", meta)
    assert third.total == 6 and third.caveat is not None
    assert "each of 3 workers reads its own files of the training data, and not as before (each" in third.caveat
