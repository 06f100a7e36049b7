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

Y = {"y": ("int64", [])}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def labels(dataset: tf.data.Dataset, name: str = "y") -> list[int]:
    return [int(item[name]) for item in dataset.as_numpy_iterator()]


def write_records(path: str, values: list[int], compression: str = "") -> str:
    with tf.io.TFRecordWriter(path, compression) as writer:
        for value in values:
            feature = {
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[value])),
                "half": tf.train.Feature(float_list=tf.train.FloatList(value=[value, 0.5])),
                "text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"\0\xff"])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    return path


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_records_interleaved(compression: str | None) -> None:
    for file in range(3):
        write_records(f"{file}.tfrecord", [10 * file, 10 * file + 1], compression or "")
    features: dict[str, Any] = {**Y, "half": (tf.float32, [2]), "text": tf.io.FixedLenFeature([], tf.string)}
    items = list(readers.tfrecords("*.tfrecord", features=features, compression=compression, cycle_length=2))
    assert [int(item["y"]) for item in items] == [0, 10, 1, 11, 20, 21]
    assert items[1]["half"].numpy().tolist() == [10.0, 0.5] and items[1]["text"].numpy() == b"\0\xff"
    several = ["1.tfrecord", Path("0.tfrecord"), "[12].tfrecord"]
    assert labels(readers.tfrecords(several, features=Y, compression=compression)) == [0, 10, 20, 1, 11, 21]


def test_wrong_records() -> None:
    with pytest.raises(DataError, match=r"no/\*: matches no file; name a TFRecord file or a glob pattern of some$"):
        readers.tfrecords("no/*", features=Y)


@pytest.fixture
def images() -> Path:
    """Class b with an upper-case JPEG, class a with two PNGs and another file, and a hidden directory."""
    folder = Path("images")
    for name in ("b", "a", ".hidden"):
        (folder / name).mkdir(parents=True)
    for name, value, encode in [
        ("a/2.png", 51, tf.io.encode_png),
        ("a/1.png", 255, tf.io.encode_png),
        ("b/1.JPG", 0, tf.io.encode_jpeg),
    ]:
        (folder / name).write_bytes(encode(np.full((6, 9, 3), value, np.uint8)).numpy())
    (folder / "a" / "notes.txt").write_text("not an image")
    (folder / "a" / "._1.png").write_bytes(b"resources of macOS")
    (folder / "notes.txt").write_text("not a class")
    return folder


def test_damaged_image_is_named(images: Path) -> None:
    for content in (b"", b"<html>"):
        (images / "a" / "3.png").write_bytes(content)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"not an image.*a/3\.png"):
            list(readers.image_folder(images, size=(4, 4)))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_in_order(images: Path, channels: int) -> None:
    dataset = readers.image_folder(images, size=(4, 5), channels=channels)
    assert dataset.element_spec == {
        "image": tf.TensorSpec([4, 5, channels], tf.float32),
        "label": tf.TensorSpec([], tf.int32),
    }
    items = list(dataset.as_numpy_iterator())
    assert [item["label"] for item in items] == [0, 0, 1] and readers.class_names(images) == ["a", "b"]
    for item, value in zip(items, [1.0, 0.2, 0.0], strict=True):
        np.testing.assert_allclose(item["image"], np.full((4, 5, channels), value), atol=1e-6)
        assert item["image"].min() >= 0 and item["image"].max() <= 1


def add_class(folder: str, *names: str) -> Path:
    for name in names:
        (Path(folder) / name).mkdir(parents=True)
        (Path(folder) / name / "1.png").write_bytes(tf.io.encode_png(np.zeros((2, 2, 3), np.uint8)).numpy())
    return Path(folder)


def test_given_class_numbers() -> None:
    trn, vld = add_class("trn", "cat", "dog", "eel"), add_class("vld", "cat", "eel")
    for shuffle in (False, "index"):
        dataset = readers.image_folder(vld, size=(2, 2), classes=readers.class_names(trn), shuffle=shuffle)  # type: ignore[arg-type]
        assert sorted(labels(dataset, "label")) == [0, 2]
    with pytest.raises(DataError, match=r"^trn: the directory 'dog' is not in classes=\['cat', 'eel'\]$"):
        readers.image_folder(trn, size=(2, 2), classes=["cat", "eel"])


@pytest.fixture
def url() -> str:
    pytest.importorskip("fsspec")
    return f"memory://{uuid.uuid4().hex}"


def put(url: str, content: str | bytes) -> None:
    import fsspec

    with fsspec.open(url, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def test_files_at_urls_are_downloaded_once(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads: list[Any] = []
    download = Storage.download
    monkeypatch.setattr(
        Storage, "download", lambda self, paths, at: (downloads.extend(paths), download(self, paths, at))
    )
    put(f"{url}/a.csv", "y\n1\n2\n")
    put(f"{url}/b.csv", "y\n3\n")
    both = [f"{url}/a.csv", f"{url}/b.csv"]
    for shuffle in (None, "index"):
        assert sorted(labels(readers.csv(both, features=Y, shuffle=shuffle))) == [1, 2, 3]  # type: ignore[arg-type]
    assert sorted(downloads) == ["a.csv", "b.csv"]
    put(f"{url}/b.csv", "y\n4\n")
    assert labels(readers.csv(both, features=Y)) == [1, 2, 4]
    assert sorted(downloads) == ["a.csv", "b.csv", "b.csv"]
    put(f"{url}/c.csv", "y\nx\n")
    with pytest.raises(DataError, match=f"^{url}/c.csv, line 2: 'y': \"x\" is not of type int64$"):
        readers.csv(f"{url}/c.csv", features=Y)
    with pytest.raises(StorageError, match=f"^there is no file {url}/d.csv$"):
        readers.csv(f"{url}/d.csv", features=Y)
    Path("d.jsonl").write_text('{"y": 5}')
    assert labels(readers.json_lines(f"file://{tmp_path}/d.jsonl", features=Y)) == [5]


def test_patterns_and_folders_at_urls(url: str) -> None:
    for number in range(3):
        put(f"{url}/part-{number}/x.tfrecord", Path(write_records("r", [number])).read_bytes())
        put(f"{url}/images/{'ab'[number % 2]}/{number}.png", tf.io.encode_png(np.zeros((1, 1, 3), np.uint8)).numpy())
    put(f"{url}/images/notes.txt", "no image")
    assert labels(readers.tfrecords(f"{url}/part-[01]/*.tfrecord", features=Y)) == [0, 1]
    assert labels(readers.tfrecords(f"{url}/part-*/*.tfrecord", features=Y)) == [0, 1, 2]
    with pytest.raises(DataError, match=f"{url}/other-.*: matches no file"):
        readers.tfrecords(f"{url}/other-*", features=Y)
    assert labels(readers.image_folder(f"{url}/images", size=(1, 1)), "label") == [0, 0, 1]
    assert readers.class_names(f"{url}/images") == ["a", "b"]
    put(f"{url}/images/empty/notes.txt", "no image")
    with pytest.raises(DataError, match=rf"{url}/images/empty: holds no images \(\.bmp"):
        readers.image_folder(f"{url}/images", size=(1, 1))


def test_failed_download_leaves_nothing(url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(f"{url}/a.csv", "y\n1\n")

    do = Storage._do

    def fail(self: Storage, what: str, *given: Any, **options: Any) -> Any:
        if what != "read from":
            return do(self, what, *given, **options)
        (scratch,) = cache.rglob(".tmp-*")
        (scratch / "0").write_text("y")
        raise StorageError("cannot read from it: no such key")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="no such key"):
        patch.setattr(Storage, "_do", fail)
        readers.csv(f"{url}/a.csv", features=Y)
    assert not [path for path in cache.rglob("*") if path.is_file()]
    assert labels(readers.csv(f"{url}/a.csv", features=Y)) == [1]


@pytest.mark.parametrize("feature", [("int32", []), ("int64", [None]), ("float64", [3])])
def test_features_that_records_cannot_hold(feature: Any, scratch: Path) -> None:
    with tf.io.TFRecordWriter("a.tfrecord") as file:
        file.write(b"")
    with pytest.raises(DataError, match="use float32, int64 or string with a fixed shape"):
        readers.tfrecords("a.tfrecord", features={"n": feature})
