from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import readers
from prototrain.errors import DataError

pytestmark = pytest.mark.usefixtures("scratch")
FEATURES = {"x": ("float32", [2]), "y": ("uint8", []), "text": ("string", []), "flag": ("bool", [])}
COLUMNS = {"x": ["left", "right"]}
LINES = ["left,unused,right,y,text,flag", '1,,2.5,3,"a, b\nc",true', "", "-1e3,z, 4 ,255,ä,0"]
EXPECTED = [
    {"x": [1.0, 2.5], "y": 3, "text": b"a, b\nc", "flag": True},
    {"x": [-1000.0, 4.0], "y": 255, "text": "ä".encode(), "flag": False},
]
DIGITS = {"example": ("uint8", [3]), "label": ("int32", [])}
GOOD = '{"example": [1, 2, 3], "label": 7}'


def write(path: str, *lines: str | bytes) -> str:
    Path(path).write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return path


def read(dataset: tf.data.Dataset) -> list[dict[str, Any]]:
    return [{name: np.asarray(value).tolist() for name, value in item.items()} for item in dataset.as_numpy_iterator()]


def by_label(dataset: tf.data.Dataset) -> list[dict[str, Any]]:
    return sorted(read(dataset), key=lambda item: item["y"])


def test_json_lines_dtypes_and_shapes() -> None:
    features: dict[str, Any] = {
        "matrix": (tf.float32, (2, 2)),
        "half": ("bfloat16", []),
        "big": (np.int64, []),
        "unsigned": ("uint64", []),
        "flag": ("bool", [2]),
        "text": ("string", []),
        "none": ("float32", [0]),
    }
    item: dict[str, Any] = {
        "matrix": [[1, 2.5], [-3.0, 4e-3]],
        "half": 1.5,
        "big": -(2**63),
        "unsigned": 2**64 - 1,
        "flag": [True, False],
        "text": "zero\0 ä \0",
        "none": [],
        "not asked for": {},
    }
    dataset = readers.json_lines(
        write("all.jsonl", json.dumps(item), json.dumps(item | {"half": 2})), features=features
    )
    for name, (dtype, shape) in features.items():
        assert dataset.element_spec[name] == tf.TensorSpec(shape, dtype)
    first, second = dataset
    assert first["matrix"].numpy().tolist() == np.array(item["matrix"], np.float32).tolist()
    assert [float(item["half"]) for item in (first, second)] == [1.5, 2.0]
    for name in ("big", "unsigned", "flag", "none"):
        assert first[name].numpy().tolist() == item[name]
    assert first["text"].numpy() == item["text"].encode()


def test_json_lines_order_and_empty_lines() -> None:
    odd = write("odd.jsonl", b"\xef\xbb\xbf" + GOOD.encode(), "", "  \t", GOOD + "\r")
    paths = [odd, *(write(f"{label}.jsonl", GOOD.replace("7", str(label))) for label in (2, 1))]
    items = read(readers.json_lines(paths, features=DIGITS))
    assert [item["label"] for item in items] == [7, 7, 2, 1] and items[0]["example"] == [1, 2, 3]


@pytest.mark.parametrize("shuffle", [None, False, "index"])
def test_csv(shuffle: Any) -> None:
    Path("a.csv").write_text("\n".join(LINES))
    Path("b.csv").write_text("\r\n".join([*LINES[1:], ""]))
    dataset = readers.csv("a.csv", features=FEATURES, columns=COLUMNS, shuffle=shuffle)
    assert dataset.element_spec["x"] == tf.TensorSpec([2], tf.float32) and len(dataset) == 2
    assert by_label(dataset) == EXPECTED
    header = LINES[0].split(",")
    both = readers.csv(["b.csv", "b.csv"], features=FEATURES, columns=COLUMNS, header=header, shuffle=shuffle)
    assert by_label(both) == sorted(EXPECTED * 2, key=lambda item: item["y"])
    Path("c.tsv").write_text("y\tother\n7\t8\n")
    assert read(readers.csv("c.tsv", features={"y": ("int64", [])}, delimiter="\t", shuffle=shuffle)) == [{"y": 7}]


@pytest.mark.parametrize(
    ("reader", "content", "said"),
    [
        (readers.json_lines, b'{"y": 1, "x": 2}\n\n{\n', ", line 3: not JSON ("),
        (readers.json_lines, b'{"y": 1}\n', ", line 1: 'x' is missing"),
        (readers.json_lines, b'{"y": 300, "x": 2}\n', ", line 1: 'y': 300 does not fit into uint8"),
        (readers.json_lines, b'{"y": true, "x": 2}\n', ", line 1: 'y': true is not of type uint8"),
        (readers.csv, b"y,x\n1,2\n1,nan", ", line 3: 'x': NaN is not a finite number"),
        (readers.csv, b'y,x\n"\n1",2\n256,2', ", line 4: 'y': 256 does not fit into uint8"),
        (readers.csv, b"y,z\n1,2", ": has no column 'x'; there are: y, z"),
        (readers.csv, b"y,x\n\xff,1\n", ": not UTF-8"),
        (readers.csv, b"\x1f\x8b\x08", ": not UTF-8"),
        (readers.csv, b"\ny,x\n1,2\n", ": is empty, or begins with an empty line"),
    ],
)
def test_wrong_json_lines_and_csv(reader: Any, content: bytes, said: str) -> None:
    Path("a").mkdir()
    Path("a/data").write_bytes(content)
    with pytest.raises(DataError) as caught:
        reader("a/data", features={"y": ("uint8", []), "x": ("float32", [])})
    assert str(caught.value).startswith(f"a/data{said}") and "\n" not in str(caught.value)


def test_csv_defaults() -> None:
    Path("a.csv").write_text("n,word,flag\n1,a,true\n ,,\n")
    features = {"n": ("int32", []), "word": ("string", []), "flag": ("bool", [])}
    dataset = readers.csv("a.csv", features=features, defaults={"n": -1, "flag": False, "word": "none"})
    assert read(dataset)[1] == {"n": -1, "word": b"none", "flag": False}
    with pytest.raises(DataError, match="'n': \" \" is not of type int32"):
        readers.csv("a.csv", features=features)
    # A default belongs to the feature, also if two features read one column.
    twice = {"features": {"n": ("int32", []), "m": ("int32", [])}, "columns": {"m": ["n"]}}
    assert read(readers.csv("a.csv", **twice, defaults={"n": -1, "m": -2}))[1] == {"n": -1, "m": -2}
    with pytest.raises(DataError, match="'n': \" \" is not of type int32"):
        readers.csv("a.csv", **twice, defaults={"m": -2})
    with pytest.raises(DataError, match=r"'x' has 2 values: name as many columns with columns={'x': "):
        readers.csv("a.csv", features=FEATURES)
    with pytest.raises(DataError, match="'n' has the unknown dtype 'flot32'"):
        readers.csv("a.csv", features={"n": ("flot32", [])})


@pytest.mark.parametrize("shuffle", [None, "index"])
def test_parquet(shuffle: Any) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table: dict[str, Any] = {
        "x": pyarrow.array([[1, 2.5], [-1000, 4]], pyarrow.list_(pyarrow.float64())),
        "y": pyarrow.array([3, 255]),
        "text": pyarrow.array(["a, b\nc", "ä"]).dictionary_encode(),
        "flag": pyarrow.array([True, False]),
        "matrix": pyarrow.array([[[1], [2]], [[3], [4]]], pyarrow.list_(pyarrow.list_(pyarrow.int8(), 1))),
    }
    parquet.write_table(pyarrow.table(table), "a.parquet", row_group_size=1)
    dataset = readers.parquet("a.parquet", features={**FEATURES, "matrix": ("bfloat16", [2, 1])}, shuffle=shuffle)
    items = by_label(dataset.map(lambda item: {**item, "matrix": tf.cast(item["matrix"], tf.int32)}))
    assert items == [item | {"matrix": m} for item, m in zip(EXPECTED, ([[1], [2]], [[3], [4]]), strict=True)]


@pytest.mark.parametrize(
    ("values", "feature", "said"),
    [
        ([1, 2, None], ("uint8", []), "a.parquet, row group 1: 'y' has a null"),
        ([1e39], ("float32", []), "a.parquet, row group 0: 'y' has a value that is not finite in float32"),
        ([], ("uint8", []), "a.parquet: holds no examples"),
        ([1, 2], ("bool", []), "a.parquet, row group 0: 'y' is int64, not bool"),
        ([[1, 2, 3], [4]], ("int64", [-1]), "'y': the shape [-1] must be fixed"),
        ([datetime(2020, 1, 1)], ("int64", []), "a.parquet, row group 0: 'y' is timestamp[us], not int64"),
    ],
)
def test_wrong_parquet(values: list[Any], feature: Any, said: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"y": pyarrow.array(values)}), "a.parquet", row_group_size=2)
    with pytest.raises(DataError) as caught:
        readers.parquet("a.parquet", features={"y": feature})
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: readers.csv("a", features={"x": "float32"}), "'x' must be .dtype, shape."),
        (lambda: readers.json_lines("a", features={"x": ("float32", 2)}), "'x' must be .dtype, shape."),
        (lambda: readers.tfrecords("a", features={"x": ("float32", 2)}), "'x' must be .dtype, shape."),
        (lambda: readers.tfrecords("a", features={}), "at least one name"),
        (lambda: readers.csv("a", features=["x"]), "features must be a dict"),
        (lambda: readers.csv("a", features={"x": ("int32", [])}, header="x,y"), "header needs a list"),
        (lambda: readers.csv("a", features={"x": ("int32", [])}, delimiter=";;"), "delimiter must be one character"),
        (lambda: readers.tfrecords([], features={"x": ("int64", [])}), "there are no files"),
        (lambda: readers.image_folder(".", size=(2, 2), classes=["class", "class"]), "has a name twice"),
        (lambda: readers.image_folder(".", size=2), "size must be"),
        (lambda: readers.image_folder(".", size=(2, 2), channels=7), "channels 1, 3 or 4"),
    ],
)
def test_wrong_arguments(read: Callable[[], Any], message: str, scratch: Path) -> None:
    (scratch / "a").write_text("x,y\n1,2\n")
    (scratch / "class").mkdir()
    with pytest.raises(DataError, match=message):
        read()


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'prototrain\[parquet\]'$"):
        readers.parquet("a.parquet", features={"y": ("uint8", [])})
