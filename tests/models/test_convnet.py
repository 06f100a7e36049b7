from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from models.convnet.datasets import datasets
from models.convnet.layers import read_layers
from prototrain import SimpleTrainer, load_model
from prototrain.cli import main
from prototrain.errors import ConfigError, DataError
from tests.models.exact import train

SMALL = [
    {"type": "conv", "filters": 4, "kernel_size": 3, "strides": 2},
    {"type": "batch_norm", "activation": "relu"},
    {"type": "pool", "size": 2, "method": "avg"},
    {"type": "dropout", "rate": 0.2},
    {"type": "fc", "units": "classes"},
]
CONV: dict[str, Any] = {"type": "conv", "filters": 4, "kernel_size": 3}
FC: dict[str, Any] = {"type": "fc", "units": "classes"}


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model; its config is restored after the test."""
    found = load_model("models.convnet")
    monkeypatch.setattr(found.config, "data", {**found.config.data, "model.layers": SMALL})
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of three classes, each with its own grey level: 12 of each for training, 2 for validation."""
    directory = tmp_path_factory.mktemp("folders")
    for split, count in (("trn", 12), ("vld", 2)):
        for label, name in enumerate(["cat", "dog", "owl"]):
            (directory / split / name).mkdir(parents=True)
            for number in range(count):
                picture(directory / split / name / f"{number:02}.png", 100 * label + number)
    return directory


def picture(path: Path, value: int) -> None:
    path.write_bytes(tf.io.encode_png(np.full((6, 9, 3), value, np.uint8)).numpy())


def settings(model: Any, **more: Any) -> Any:
    """Set keys, with ``__`` for dots."""
    model.config.update({key.replace("__", "."): value for key, value in more.items()})
    return model


def of_folders(model: Any, directory: Path, **more: Any) -> Any:
    chosen = {"data__format": "folders", "data__directory": str(directory), "model__num_classes": 3}
    return settings(model, **{**chosen, "model__batch_size": 8, **more})


def pictures(dataset: tf.data.Dataset) -> list[tuple[int, float]]:
    """Every label with its picture's grey level."""
    batches = list(dataset.as_numpy_iterator())
    return [
        (int(label), round(float(image.mean()) * 255))
        for batch in batches
        for image, label in zip(batch["images"], batch["labels"], strict=True)
    ]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([{"type": "convv"}, FC], "model.layers[0]: unknown type 'convv'; known are conv, "),
        ([FC, CONV, FC], "[1] (conv): works on images, but model.layers[0] (fc) before it has made vectors of them"),
        ([{**FC, "units": 50}], "no activation, and 10 units as model.num_classes says"),
    ],
)
def test_wrong_layer_is_one_line(layers: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_layers(layers, classes=10)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_images_and_labels_from_folders(model: Any, folders: Path) -> None:
    made = datasets_of(of_folders(model, folders))
    assert list(made) == ["trn", "vld"]
    assert len(made["trn"]) == 4 and len(made["vld"]) == 1
    assert made["trn"].element_spec["images"].shape == [8, 8, 8, 1]
    assert pictures(made["vld"]) == [(0, 0), (0, 1), (1, 100), (1, 101), (2, 200), (2, 201)]
    first, second = pictures(made["trn"]), pictures(made["trn"])
    assert first != second and len(set(first)) == 32
    assert all(value // 100 == label for label, value in first)


def datasets_of(model: Any) -> dict[str, tf.data.Dataset]:
    tf.random.set_seed(1)
    return datasets()


def faulty(folders: Path, directory: Path) -> Path:
    """A copy with a class that is empty, one that only vld has, and two broken pictures."""
    for file in folders.rglob("*.png"):
        copy = directory / file.relative_to(folders)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    (directory / "trn" / "ant").mkdir()
    (directory / "vld" / "yak").mkdir()
    picture(directory / "vld" / "yak" / "1.png", 3)
    (directory / "trn" / "dog" / "03.png").write_bytes(b"")
    (directory / "vld" / "owl" / "00.png").write_bytes((folders / "vld/owl/00.png").read_bytes()[:-20])
    return directory


def test_damaged_images_are_skipped_and_named(
    model: Any, folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = dict.fromkeys(["data__on_empty_class", "data__on_broken_picture", "data__on_unknown_class"], "skip")
    made = datasets_of(of_folders(model, faulty(folders, tmp_path), model__batch_size=1, **faults))
    said = capsys.readouterr().out
    assert all(name in said for name in ("trn/ant", "trn/dog/03.png", "vld/owl/00.png (", "vld/yak"))
    assert len(made["trn"]) == 35
    assert pictures(made["vld"]) == [(0, 0), (0, 1), (1, 100), (1, 101), (2, 201)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model__num_classes": 10}, "num_classes is 10, but the data has 3 classes: cat, dog, owl"),
        ({"data__format": "tfrecords"}, "has no shards.json, so there are no shards or they are not all written"),
    ],
)
def test_wrong_settings(model: Any, folders: Path, change: dict[str, Any], message: str) -> None:
    of_folders(model, folders, **change)
    with pytest.raises((ConfigError, DataError), match=message):
        datasets()


ACTION = ["action", "models.convnet", "models.convnet.actions.make_tfrecords"]


def test_shards_equal_folders(model: Any, folders: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    expected = datasets_of(of_folders(model, folders, model__batch_size=1))
    shards = tmp_path / "shards"
    assert main([*ACTION, "--out", str(shards), "--shards", "3"]) == 0
    assert "36 images in trn, 6 images in vld" in capfd.readouterr().out
    made = datasets_of(settings(model, data__format="tfrecords", data__directory=str(shards)))
    assert {name: len(dataset) for name, dataset in made.items()} == {"trn": 36, "vld": 6}
    for split in ("trn", "vld"):
        assert sorted(pictures(made[split])) == sorted(pictures(expected[split]))
    with open(shards / "vld-00001-of-00003.tfrecord", "r+b") as file:
        file.truncate(100)
    with pytest.raises(DataError, match=r"vld-00001-of-00003\.tfrecord has 100 bytes where .* were written"):
        datasets()


@pytest.mark.slow
def test_digits_are_learned() -> None:
    trainer = train(SimpleTrainer(load_model("models.convnet")), 200)
    assert trainer.evaluate("tst")["accuracy"] >= 0.95
