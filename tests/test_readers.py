"""The readers: what they read, what they refuse, and that a saved position is exact."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import SimpleTrainer, readers
from prototrain.errors import DataError
from tests.tiny import tiny_config

FEATURES = {"example": ("uint8", [3]), "label": ("int32", [])}
GOOD = '{"example": [1, 2, 3], "label": 7}'


def write(path: Path, *lines: str | bytes) -> Path:
    path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return path


def read(dataset: tf.data.Dataset) -> list[dict[str, Any]]:
    return [{name: value.tolist() for name, value in item.items()} for item in dataset.as_numpy_iterator()]


# JSON lines


def test_json_lines_reads_every_dtype_and_shape_in_order(tmp_path):
    features = {
        "matrix": (tf.float32, (2, 2)),
        "half": ("bfloat16", []),
        "big": (np.int64, []),
        "unsigned": ("uint64", []),
        "flag": ("bool", [2]),
        "text": ("string", []),
        "none": ("float32", [0]),
    }
    item = {
        "matrix": [[1, 2.5], [-3.0, 4e-3]],
        "half": 1.5,
        "big": -(2**63),
        "unsigned": 2**64 - 1,
        "flag": [True, False],
        "text": "zero\0 ä \0",
        "none": [],
        "not asked for": {},
    }
    path = write(tmp_path / "all.jsonl", json.dumps(item), json.dumps(item | {"half": 2}))
    dataset = readers.json_lines(path, features=features)
    for name, (dtype, shape) in features.items():
        assert dataset.element_spec[name] == tf.TensorSpec(shape, dtype)
    first, second = dataset
    assert first["matrix"].numpy().tolist() == np.array(item["matrix"], np.float32).tolist()
    assert [float(item["half"]) for item in (first, second)] == [1.5, 2.0]
    for name in ("big", "unsigned", "flag", "none"):
        assert first[name].numpy().tolist() == item[name]
    assert first["text"].numpy() == item["text"].encode()


def test_json_lines_skips_empty_lines_and_takes_a_mark_and_windows_line_ends(tmp_path):
    path = write(tmp_path / "odd.jsonl", b"\xef\xbb\xbf" + GOOD.encode(), "", "  \t", GOOD + "\r")
    assert read(readers.json_lines(path, features=FEATURES)) == [{"example": [1, 2, 3], "label": 7}] * 2


def test_json_lines_reads_files_in_the_order_given(tmp_path):
    paths = [write(tmp_path / f"{label}.jsonl", GOOD.replace("7", str(label))) for label in (2, 1, 3)]
    assert [item["label"] for item in read(readers.json_lines(paths, features=FEATURES))] == [2, 1, 3]
    assert [item["label"] for item in read(readers.json_lines(str(paths[0]), features=FEATURES))] == [2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not JSON ("),
        (GOOD[:-3], "not JSON ("),
        (GOOD + GOOD, "not JSON ("),
        (b"\xff{}", "not JSON ("),
        (b"[" * 100_000, "not JSON ("),
        ("[1, 2]", "not a JSON object: a nested list"),
        ('"' + "x" * 99 + '"', 'not a JSON object: "' + "x" * 36 + "..."),
        ("null", "not a JSON object: null"),
        ('{"example": [1, 2, 3]}', "'label' is missing"),
        ('{"example": [1, 2], "label": 7}', "'example' has 2 values where 3 are expected"),
        ('{"example": 7, "label": 7}', "'example': 7 is not a list of 3 values"),
        ('{"example": [1, [2], 3], "label": 7}', "'example': a nested list is not of type uint8"),
        ('{"example": [1, 2, 3], "label": [7]}', "'label': a nested list is not of type int32"),
        ('{"example": [1, 300, 3], "label": 7}', "'example': 300 does not fit into uint8"),
        ('{"example": [1, -1, 3], "label": 7}', "'example': -1 does not fit into uint8"),
        ('{"example": [1, 2.0, 3], "label": 7}', "'example': 2.0 is not of type uint8"),
        ('{"example": [1, 2, 3], "label": true}', "'label': true is not of type int32"),
        ('{"example": [1, 2, 3], "label": "7"}', "'label': \"7\" is not of type int32"),
        ('{"example": [1, 2, 3], "label": null}', "'label': null is not of type int32"),
        ('{"example": [1, 2, 3], "label": %s}' % ("9" * 99), "'label': 1e+99 is not of type int32"),
        ('{"example": [1, 2, 3], "label": %s}' % ("9" * 5000), "not JSON ("),
    ],
)
def test_json_lines_names_file_and_line_of_what_it_refuses(tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    path = write(tmp_path / "data" / "trn.jsonl", GOOD, "", line, GOOD)
    with pytest.raises(DataError) as caught:
        readers.json_lines(path, features=FEATURES)
    assert str(caught.value).startswith(f"data/trn.jsonl, line 3: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("float32", "NaN", "not JSON ("),
        ("float32", "-Infinity", "not JSON ("),
        ("float64", "1e999", "not JSON ("),
        ("float32", "1e39", "'x': 1e+39 does not fit into float32"),
        ("float16", "65505", "'x': 65505 does not fit into float16"),
        ("float32", "1" + "0" * 400, "not JSON ("),
        ("float32", "false", "'x': false is not of type float32"),
        ("bool", "1", "'x': 1 is not of type bool"),
        ("string", "1", "'x': 1 is not of type string"),
        ("string", r'"\ud800"', "not JSON ("),
    ],
)
def test_json_lines_refuses_values_that_a_dtype_cannot_hold(tmp_path, dtype, value, message):
    path = write(tmp_path / "a.jsonl", f'{{"x": {value}}}')
    with pytest.raises(DataError) as caught:
        readers.json_lines(path, features={"x": (dtype, [])})
    assert str(caught.value).startswith(f"{path}, line 1: {message}")


def test_json_lines_names_a_file_that_is_missing_unreadable_or_empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("empty.jsonl"), "", "  ")
    good = write(Path("good.jsonl"), GOOD)
    for path, message in [
        ("no.jsonl", "no.jsonl: cannot be read (No such file or directory)"),
        (tmp_path, f"{Path('.')}: cannot be read (Is a directory)"),
        ("empty.jsonl", "empty.jsonl: holds no examples"),
    ]:
        with pytest.raises(DataError) as caught:
            readers.json_lines([good, path], features=FEATURES)
        assert str(caught.value) == message


def test_json_lines_refuses_a_dtype_that_json_has_no_values_for(tmp_path):
    with pytest.raises(DataError, match="'x': files hold no complex64"):
        readers.json_lines(write(tmp_path / "a.jsonl", '{"x": 1}'), features={"x": ("complex64", [])})


# Folders of images


@pytest.fixture
def images(tmp_path) -> Path:
    """Class b with an upper-case JPEG, class a with two PNGs and what is not an image, and a hidden directory."""
    folder = tmp_path / "images"
    for name in ("b", "a", ".hidden"):
        (folder / name).mkdir(parents=True)
    for name, value, encode in [
        ("a/2.png", 51, tf.io.encode_png),
        ("a/1.png", 255, tf.io.encode_png),
        ("b/1.JPG", 0, tf.io.encode_jpeg),
    ]:
        (folder / name).write_bytes(encode(np.full((6, 9, 3), value, np.uint8)).numpy())
    (folder / "a" / "notes.txt").write_text("not an image")
    (folder / "notes.txt").write_text("not a class")
    return folder


@pytest.mark.parametrize("channels", [1, 3])
def test_image_folder_reads_classes_and_files_in_order(images, channels):
    dataset = readers.image_folder(images, size=(4, 5), channels=channels)
    assert dataset.element_spec == {
        "image": tf.TensorSpec([4, 5, channels], tf.float32),
        "label": tf.TensorSpec([], tf.int32),
    }
    items = list(dataset.as_numpy_iterator())
    assert [item["label"] for item in items] == [0, 0, 1]
    for item, value in zip(items, [1.0, 0.2, 0.0], strict=True):
        np.testing.assert_allclose(item["image"], np.full((4, 5, channels), value), atol=1e-6)
        assert item["image"].min() >= 0
        assert item["image"].max() <= 1
    assert readers.class_names(images) == ["a", "b"]


def test_image_folder_takes_the_extensions_that_it_is_given(images):
    with pytest.raises(DataError, match=r"images/b: holds no images \(\.png\); add some or remove it$"):
        readers.image_folder(images, size=(4, 4), extensions=[".PNG"])


def test_image_folder_shuffles_anew_in_every_epoch_and_keeps_images_and_labels_together(images):
    for number in range(3, 12):
        image = np.full((2, 2, 3), 20 * number, np.uint8)
        (images / "ab"[number % 2] / f"{number}.png").write_bytes(tf.io.encode_png(image).numpy())
    expected = read(readers.image_folder(images, size=(2, 2)))
    tf.keras.utils.set_random_seed(1)
    dataset = readers.image_folder(images, size=(2, 2), shuffle=True)
    first, second = read(dataset), read(dataset)
    assert first != second
    for epoch in (first, second):
        assert sorted(epoch, key=repr) == sorted(expected, key=repr)


def add_class(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "1.png").write_bytes(tf.io.encode_png(np.zeros((2, 2, 3), np.uint8)).numpy())
    return folder


def test_image_folder_numbers_the_classes_that_it_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trn, vld = add_class(Path("trn"), "cat", "dog", "eel"), add_class(Path("vld"), "cat", "eel")
    for shuffle in (False, True, "index"):
        dataset = readers.image_folder(vld, size=(2, 2), classes=readers.class_names(trn), shuffle=shuffle)
        assert sorted(item["label"] for item in dataset.as_numpy_iterator()) == [0, 2]
    with pytest.raises(DataError, match=r"^trn: the directory 'dog' is not in classes=\['cat', 'eel'\]$"):
        readers.image_folder(trn, size=(2, 2), classes=["cat", "eel"])
    with pytest.raises(DataError, match=r"^vld: a name is twice in classes="):
        readers.image_folder(vld, size=(2, 2), classes=["cat", "eel", "cat"])


@pytest.mark.parametrize(
    ("classes", "warning"),
    [
        (("cat", "eel"), "WARNING: the class 'eel' is label 2 in trn and 1 in vld: give both the same classes=[...]"),
        (("cat", "dog"), None),
        (("ape",), None),
    ],
)
def test_folders_of_one_model_that_number_a_class_differently(tmp_path, monkeypatch, capsys, classes, warning):
    monkeypatch.chdir(tmp_path)
    folders = {"trn": add_class(Path("trn"), "cat", "dog", "eel"), "vld": add_class(Path("vld"), *classes)}

    class Model:
        config = tiny_config(model__num_steps=1, model__batch_size=1)

        def datasets(self):
            return {name: readers.image_folder(path, size=(2, 2)).batch(1) for name, path in folders.items()}

        def build(self, inputs, train_phase):
            return {"loss": tf.keras.layers.Dense(1)(tf.reshape(inputs["image"], [1, 12]))[0, 0]}

    SimpleTrainer(Model()).train()
    assert [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line] == [warning] * bool(warning)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "nowhere: cannot be read as a directory of images (No such file or directory)"),
        ("images/notes.txt", "images/notes.txt: cannot be read as a directory of images (Not a directory)"),
        ("images/a", "images/a: holds no directories; an image folder has one for each class"),
    ],
)
def test_image_folder_names_the_directory_that_it_cannot_use(images, monkeypatch, path, message):
    monkeypatch.chdir(images.parent)
    with pytest.raises(DataError) as caught:
        readers.image_folder(path, size=(4, 4))
    assert str(caught.value) == message


# TFRecords


@pytest.fixture
def records(tmp_path) -> Callable[[int, int], str]:
    def make(files: int, examples: int, compression: str = "") -> str:
        """Writes records x = 10 * file + index, and returns the pattern of the files."""
        for file in range(files):
            with tf.io.TFRecordWriter(str(tmp_path / f"{file}.tfrecord"), compression) as writer:
                for index in range(examples):
                    number = 10 * file + index
                    feature = {
                        "x": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
                        "y": tf.train.Feature(float_list=tf.train.FloatList(value=[number, 0.5])),
                        "z": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"\0\xff"] * index)),
                    }
                    example = tf.train.Example(features=tf.train.Features(feature=feature))
                    writer.write(example.SerializeToString())
        return str(tmp_path / "*.tfrecord")

    return make


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_tfrecords_reads_files_in_turn_and_parses(records, compression):
    features = {"x": ("int64", []), "y": (tf.float32, [2]), "z": tf.io.VarLenFeature(tf.string)}
    pattern = records(3, 2, compression or "")
    items = list(readers.tfrecords(pattern, features=features, compression=compression, cycle_length=2))
    assert [int(item["x"]) for item in items] == [0, 10, 1, 11, 20, 21]
    assert items[1]["y"].numpy().tolist() == [10.0, 0.5]
    assert tf.sparse.to_dense(items[2]["z"]).numpy().tolist() == [b"\0\xff"]


def test_tfrecords_takes_several_patterns_and_reads_no_file_twice(records):
    pattern = records(3, 1)
    files = [pattern.replace("*", "1"), Path(pattern.replace("*", "0")), pattern.replace("*", "[12]")]
    found = [item["x"] for item in read(readers.tfrecords(files, features={"x": ("int64", [])}))]
    assert found == [0, 10, 20]


def test_tfrecords_refuses_a_pattern_without_files_and_a_dtype_that_records_do_not_hold(records, tmp_path):
    pattern = records(1, 1)
    with pytest.raises(DataError, match=r"no/\*: matches no file; name a TFRecord file or a glob pattern of some$"):
        readers.tfrecords([pattern, tmp_path / "no" / "*"], features={"x": ("int64", [])})
    with pytest.raises(DataError, match="'x': TFRecords hold float32, int64 and string, not uint8"):
        readers.tfrecords(pattern, features={"x": ("uint8", [])})


# The digits of models.simple, which are read by nothing but this


def test_the_digits_are_whole_and_no_digit_is_in_two_parts():
    folder = Path(__file__).parents[1] / "models" / "simple" / "data"
    features = {"example": ("uint8", [64]), "label": ("int32", [])}
    parts = {
        name: read(readers.json_lines(folder / f"{name}.jsonl", features=features)) for name in ("trn", "vld", "tst")
    }
    assert {name: len(part) for name, part in parts.items()} == {"trn": 1257, "vld": 270, "tst": 270}
    digits = {(*item["example"], int(item["label"])) for part in parts.values() for item in part}
    assert len(digits) == 1797 and sum(map(sum, digits)) == 569788
    for part in parts.values():
        counts = np.bincount([item["label"] for item in part])
        assert counts.min() > 0.9 * len(part) / 10


class Flow:
    """What a DataFlow of tensorpack has."""

    def __init__(self, points: list[Any], length: int | None) -> None:
        self.points, self.length, self.resets = points, length, 0

    def reset_state(self) -> None:
        self.resets += 1

    def __len__(self) -> int:
        if self.length is None:
            raise NotImplementedError
        return self.length

    def __iter__(self) -> Iterator[Any]:
        assert self.resets == 1
        yield from self.points


@pytest.mark.parametrize(
    ("points", "options", "names"),
    [
        ([[np.float32([1, 2]), 3], [np.float32([4, 5]), 6]], {"names": ["x", "y"]}, ["x", "y"]),
        ([(np.float32([1, 2]), 3), (np.float32([4, 5]), 6)], {"names": ("x", "y")}, ["x", "y"]),
        ([{"x": np.float32([1, 2]), "y": 3}, {"x": np.float32([4, 5]), "y": 6}], {}, ["x", "y"]),
        ([{"x": np.float32([1, 2]), "y": 3}, {"x": np.float32([4, 5]), "y": 6}], {"names": ["y"]}, ["y"]),
        ([{"y": np.arange(3)}, {"y": np.arange(2)}], {"batched": True}, ["y"]),
        ([{"y": "text"}, {"y": b"longer text"}], {}, ["y"]),
    ],
)
def test_a_dataflow(points: list[Any], options: dict[str, Any], names: list[str]) -> None:
    dataset = readers.dataflow(Flow(points, len(points)), **options)
    assert list(dataset.element_spec) == names and int(dataset.cardinality()) == len(points)
    for _ in range(2):
        found = list(dataset.as_numpy_iterator())
        for point, element in zip(points, found, strict=True):
            given = dict(zip(["x", "y"], point, strict=True)) if not isinstance(point, dict) else point
            for name in names:
                expected = given[name].encode() if isinstance(given[name], str) else given[name]
                np.testing.assert_array_equal(element[name], expected)


def test_a_dataflow_without_a_length() -> None:
    assert int(readers.dataflow(Flow([[1]], None), names=["x"]).cardinality()) == tf.data.UNKNOWN_CARDINALITY
    with pytest.raises(DataError, match="list_iterator can be read once only"):
        readers.dataflow(iter([[1]]), names=["x"])


@pytest.mark.parametrize(
    ("points", "options", "words"),
    [
        ([], {}, "Flow gave no data point"),
        ([[1, 2]], {}, "2 components, and there are no names"),
        ([[1, 2]], {"names": ["x"]}, "2 components, and there are 1 names"),
        ([{"x": 1}], {"names": ["y"]}, "Flow has no 'y'; a data point has: x"),
        ([5], {}, "must give lists, tuples or dicts; it gave a int"),
        ([[5]], {"names": ["x"], "batched": True}, "'x' of Flow is a number"),
    ],
)
def test_a_dataflow_that_does_not_fit(points: list[Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=re.escape(words)):
        readers.dataflow(Flow(points, None), **options)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (
            [{"x": np.zeros(4, np.float32)}, {"x": np.zeros(5, np.float32)}],
            "'x' of Flow is float32 [5] after data points of float32 (4,): "
            "give spec={'x': tf.TensorSpec([None], tf.float32), ...}",
        ),
        ([{"x": 1}, {"x": 0.5}], "give spec={'x': tf.TensorSpec([], tf.float64), ...}"),
        ([{"x": 1}, {"x": [1]}], "give spec={'x': tf.TensorSpec(None, tf.int64), ...}"),
        ([{"x": 1}, {"x": "text"}], "give spec={'x': tf.TensorSpec([], tf.string), ...}"),
    ],
)
def test_a_data_point_unlike_the_first_is_one_line_with_the_cure(points: list[Any], words: str) -> None:
    with pytest.raises(tf.errors.OpError, match=re.escape(words)):
        list(readers.dataflow(Flow(points, None)).as_numpy_iterator())


def test_a_spec_that_all_data_points_have_in_common() -> None:
    points = [{"x": np.zeros(4), "y": 1}, {"x": np.zeros(5), "y": 0.5}]
    spec = {"x": tf.TensorSpec([None], tf.float32), "y": tf.TensorSpec([], tf.float32)}
    found = list(readers.dataflow(Flow(points, None), spec=spec).as_numpy_iterator())
    assert [len(item["x"]) for item in found] == [4, 5] and [item["y"] for item in found] == [1.0, 0.5]
