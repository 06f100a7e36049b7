"""Readers of files at URLs: downloaded once, and again when they have changed; what is said where they cannot be."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import readers
from prototrain.errors import DataError, StorageError
from prototrain.system.storage import Storage

fsspec = pytest.importorskip("fsspec")

Y = {"y": ("int64", [])}


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / "cache"))
    return f"memory://{uuid.uuid4().hex}"


def put(url: str, content: str | bytes) -> None:
    with fsspec.open(url, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def labels(dataset: tf.data.Dataset) -> list[int]:
    return sorted(int(item["y"]) for item in dataset.as_numpy_iterator())


def test_files(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads: list[Any] = []
    download = Storage.download
    monkeypatch.setattr(Storage, "download", lambda self, paths: (downloads.extend(paths), download(self, paths)))
    for shuffle in (None, "index"):
        put(f"{url}/a.csv", "y\n1\n2\n")
        put(f"{url}/b.csv", "y\n3\n")
        both = [f"{url}/a.csv", f"{url}/b.csv"]
        for _ in range(2):
            assert labels(readers.csv(both, features=Y, shuffle=shuffle)) == [1, 2, 3]
        assert sorted(downloads) == ["a.csv", "b.csv"]
        put(f"{url}/b.csv", "y\n4\n")
        assert labels(readers.csv(both, features=Y, shuffle=shuffle)) == [1, 2, 4]
        assert sorted(downloads) == ["a.csv", "b.csv", "b.csv"]
        downloads.clear()
    put(f"{url}/c.csv", "y\nx\n")
    with pytest.raises(DataError, match=f"^{url}/c.csv, line 2: 'y': \"x\" is not of type int64$"):
        readers.csv(f"{url}/c.csv", features=Y)
    (tmp_path / "d.jsonl").write_text('{"y": 5}')
    assert labels(readers.json_lines(f"file://{tmp_path}/d.jsonl", features=Y)) == [5]


def test_patterns_and_folders(url: str, tmp_path: Path) -> None:
    for number in range(3):
        one = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
        with tf.io.TFRecordWriter(str(tmp_path / "r")) as writer:
            writer.write(tf.train.Example(features=tf.train.Features(feature={"y": one})).SerializeToString())
        put(f"{url}/part-{number}/x.tfrecord", (tmp_path / "r").read_bytes())
        put(f"{url}/images/{'ab'[number % 2]}/{number}.png", tf.io.encode_png(np.zeros((1, 1, 3), np.uint8)).numpy())
    put(f"{url}/images/notes.txt", "no image")
    assert labels(readers.tfrecords(f"{url}/part-[01]/*.tfrecord", features=Y)) == [0, 1]
    assert labels(readers.tfrecords(f"{url}/part-*/*.tfrecord", features=Y, shuffle="index")) == [0, 1, 2]
    with pytest.raises(DataError, match=f"{url}/other-.*: matches no file"):
        readers.tfrecords(f"{url}/other-*", features=Y)
    found = [item["label"] for item in readers.image_folder(f"{url}/images", size=(1, 1)).as_numpy_iterator()]
    assert found == [0, 0, 1] and readers.class_names(f"{url}/images") == ["a", "b"]
    with pytest.raises(DataError, match=rf"{url}/images/a: holds no images \(\.gif\)"):
        readers.image_folder(f"{url}/images", size=(1, 1), extensions=[".gif"])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("memory://nothing/x.csv", "there is no file memory://nothing/x.csv"),
        ("gx://bucket/x.csv", "unknown scheme in gx://bucket/x.csv"),
    ],
)
def test_a_url_that_cannot_be_read(path: str, said: str, url: str) -> None:
    with pytest.raises(StorageError, match=said):
        readers.csv(path, features=Y)


def test_a_download_that_fails_leaves_nothing(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(f"{url}/a.csv", "y\n1\n")

    def fail(self: Storage, paths: dict[str, Path]) -> None:
        for path in paths.values():
            path.parent.mkdir(parents=True)
            path.write_text("y")
        raise StorageError("cannot read from it: no such key")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="no such key"):
        patch.setattr(Storage, "download", fail)
        readers.csv(f"{url}/a.csv", features=Y)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert labels(readers.csv(f"{url}/a.csv", features=Y)) == [1]
