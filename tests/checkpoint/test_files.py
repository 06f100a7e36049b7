"""Variables as TensorFlow writes them, in one file or in several at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from prototrain.checkpoint import Checkpoints, Snapshot, files, read_bundle, verify
from prototrain.errors import CheckpointError

TENSORS = {
    "scalar": tf.constant(1.5, tf.float64),
    "empty": tf.zeros([0, 3]),
    "text": tf.constant([b"a", b"\0bc"]),
    "half": tf.cast(tf.range(7), tf.bfloat16),
    **{f"large/{number}": tf.random.stateless_normal([40, 10], [number, 0]) for number in range(5)},
}


@pytest.mark.parametrize(("part", "count"), [(1, 7), (1600, 5), (4000, 2), (2**28, 1)])
def test_large_variables_are_in_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, count: int
) -> None:
    monkeypatch.setattr(files, "_FILE_BYTES", part)
    path = Checkpoints(tmp_path).save(Snapshot(1, dict(TENSORS)))
    assert sorted(file.name for file in path.iterdir()) == [
        "meta.json",
        *(f"model.data-{number:05d}-of-{count:05d}" for number in range(count)),
        "model.index",
    ]
    read = verify(path).variables()
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        np.testing.assert_array_equal(read[name], tensor)
        np.testing.assert_array_equal(tf.train.load_variable(str(path / "model"), name), tensor)  # as others read it
    last = path / f"model.data-{count - 1:05d}-of-{count:05d}"
    last.write_bytes(last.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match=f"the content of {last.name} does not match"):
        verify(path)


def test_what_was_read_is_nobody_elses(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(Snapshot(1, dict(TENSORS)))
    read = read_bundle(tmp_path / "step-0000000001/model")
    assert read["scalar"] == 1.5
    read["large/0"] += 1
    np.testing.assert_array_equal(read["large/0"], TENSORS["large/0"] + 1)


def test_reading_what_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "x.index").write_text("not an index")
    for name in ("nothing", "x"):
        with pytest.raises(CheckpointError, match=f"cannot read the checkpoint .*{name}: "):
            read_bundle(tmp_path / name)
