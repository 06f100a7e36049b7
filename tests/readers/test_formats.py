"""CSV and Parquet: what is read, what is refused and how that is named, from memory and by index."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import readers
from prototrain.errors import DataError

FEATURES = {"x": ("float32", [2]), "y": ("uint8", []), "text": ("string", []), "flag": ("bool", [])}
COLUMNS = {"x": ["left", "right"]}
LINES = ["left,unused,right,y,text,flag", '1,,2.5,3,"a, b\nc",true', "", "-1e3,z, 4 ,255,ä,0"]
EXPECTED = [
    {"x": [1.0, 2.5], "y": 3, "text": b"a, b\nc", "flag": True},
    {"x": [-1000.0, 4.0], "y": 255, "text": "ä".encode(), "flag": False},
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def read(dataset: tf.data.Dataset) -> list[dict[str, Any]]:
    return [{name: np.asarray(value).tolist() for name, value in item.items()} for item in dataset.as_numpy_iterator()]


def by_label(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(items, key=lambda item: item["y"])


@pytest.mark.parametrize("shuffle", [None, False, "index"])
def test_csv(shuffle: Any) -> None:
    Path("a.csv").write_text("\n".join(LINES))
    Path("b.csv").write_text("\r\n".join([*LINES[1:], ""]))
    dataset = readers.csv("a.csv", features=FEATURES, columns=COLUMNS, shuffle=shuffle)
    assert dataset.element_spec["x"] == tf.TensorSpec([2], tf.float32) and len(dataset) == 2
    assert by_label(read(dataset)) == EXPECTED
    header = LINES[0].split(",")
    both = readers.csv(["b.csv", "b.csv"], features=FEATURES, columns=COLUMNS, header=header, shuffle=shuffle)
    assert by_label(read(both)) == by_label(EXPECTED * 2)
    tabs = Path("c.tsv")
    tabs.write_text("y\tother\n7\t8\n")
    assert read(readers.csv(tabs, features={"y": ("int64", [])}, delimiter="\t", shuffle=shuffle)) == [{"y": 7}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("y,x\n1,2\n1,z", "a.csv, line 3: 'x': \"z\" is not of type float32"),
        ("y,x\n1,2\n1,nan", "a.csv, line 3: 'x': NaN is not finite"),
        ("y,x\n1,1_0", "a.csv, line 2: 'x': \"1_0\" is not of type float32"),
        ('y,x\n"\n1",2\n256,2', "a.csv, line 4: 'y': 256 does not fit into uint8"),
        ("y,x\n1.0,2", "a.csv, line 2: 'y': \"1.0\" is not of type uint8"),
        ("y,x\n1,2\n1", "a.csv, line 3: has 1 fields where 2 are expected"),
        ('y,x\n1,"2"3', "a.csv, line 2: not CSV"),
        ("y,z\n1,2", "a.csv: has no column 'x'; there are: y, z"),
        ("y,x,x\n1,2,3", "a.csv: has several columns 'x'"),
        ("y,x\n", "a.csv: holds no examples"),
        ("", "a.csv: has no column 'y'"),
        (b"y,x\n\xff,1\n", "a.csv: not UTF-8"),
        (None, "a.csv: cannot be read (No such file or directory)"),
    ],
)
@pytest.mark.parametrize("shuffle", [None, "index"])
def test_csv_names_what_it_refuses(content: str | bytes | None, said: str, shuffle: Any) -> None:
    if content is not None:
        Path("a.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        readers.csv("a.csv", features={"y": ("uint8", []), "x": ("float32", [])}, shuffle=shuffle)
    assert str(caught.value).startswith(said)


def test_csv_has_defaults_for_empty_fields() -> None:
    Path("a.csv").write_text("n,word,flag\n1,a,true\n ,,\n")
    features = {"n": ("int32", []), "word": ("string", []), "flag": ("bool", [])}
    dataset = readers.csv("a.csv", features=features, defaults={"n": -1, "flag": False, "word": "none"})
    assert read(dataset)[1] == {"n": -1, "word": b"none", "flag": False}
    with pytest.raises(DataError, match="'n': \" \" is not of type int32"):
        readers.csv("a.csv", features=features)
    with pytest.raises(DataError, match="there is no feature 'm'"):
        readers.csv("a.csv", features=features, defaults={"m": 1})
    with pytest.raises(DataError, match=r"'n': 1\.5 is not of type int32"):
        readers.csv("a.csv", features=features, defaults={"n": 1.5})


def test_csv_columns_of_a_feature() -> None:
    with pytest.raises(DataError, match=r"'x' has 2 values and 1 columns: name one for each with columns={'x': "):
        readers.csv("a.csv", features=FEATURES)


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
    items = by_label(read(dataset.map(lambda item: {**item, "matrix": tf.cast(item["matrix"], tf.int32)})))
    assert items == [item | {"matrix": m} for item, m in zip(EXPECTED, ([[1], [2]], [[3], [4]]), strict=True)]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, 2, None], "a.parquet, row group 1: 'y' has a null"),
        ([1, 2, 256], "a.parquet, row group 1: 'y' has 256, which does not fit into uint8"),
        ([1.0, 2.0], "a.parquet, row group 0: 'y' holds double, not uint8"),
        ([[1], [2]], "a.parquet, row group 0: 'y' holds list<"),
        ([], "a.parquet: holds no examples"),
    ],
)
def test_parquet_names_what_it_refuses(values: list[Any], said: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"y": pyarrow.array(values)}), "a.parquet", row_group_size=2)
    with pytest.raises(DataError) as caught:
        readers.parquet("a.parquet", features={"y": ("uint8", [])})
    assert str(caught.value).startswith(said)
    with pytest.raises(DataError, match=r"a\.parquet: h(as no column 'z'; there are: y|olds no examples)"):
        readers.parquet("a.parquet", features={"z": ("uint8", [])})
    Path("a.parquet").write_bytes(b"no parquet file")
    with pytest.raises(DataError, match=r"a\.parquet: not Parquet"):
        readers.parquet("a.parquet", features={"y": ("uint8", [])})


def test_parquet_lists_of_another_length_and_values_that_are_not_finite() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"x": [[1.0], [2.0, 3.0]], "y": [1.0, float("nan")]}), "a.parquet")
    with pytest.raises(DataError, match="row group 0: 'x' has 2 values where 1 are expected"):
        readers.parquet("a.parquet", features={"x": ("float32", [1])})
    with pytest.raises(DataError, match="row group 0: 'y' has a value that is not finite"):
        readers.parquet("a.parquet", features={"y": ("float32", [])})


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'prototrain\[parquet\]'$"):
        readers.parquet("a.parquet", features={"y": ("uint8", [])})


def test_numbers_keep_their_bits() -> None:
    values = np.random.default_rng(0).normal(size=50).astype(np.float32)
    Path("a.csv").write_text("x\n" + "".join(f"{value!r}\n" for value in values.tolist()))
    make: Callable[..., tf.data.Dataset] = readers.csv
    for shuffle in (None, "index"):
        found = [item["x"] for item in read(make("a.csv", features={"x": ("float32", [])}, shuffle=shuffle))]
        assert sorted(found) == sorted(values.tolist())
