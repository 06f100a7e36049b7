"""Directories with special characters in their names."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import tensorflow as tf

from prototrain import readers
from prototrain.callbacks import ModelSaver
from prototrain.checkpoint.store import read_tensors
from prototrain.errors import DataError, ExperimentError
from prototrain.experiment import Experiment
from prototrain.launch import launch
from prototrain.runs.reading import find_runs
from prototrain.sweeps.study import open_storage, sqlite_url
from prototrain.system.storage import Storage
from prototrain.trainers.tower import TowerTrainer
from tests.readers.test_files import Y, labels, write_records
from tests.tiny import tiny_model

NAME = r"-lr=[0.1] x*y\b {a,b} ß?x=1 100%#1"
OTHERS = ["-lr=0 xzzyb a ßqx=1 100%#1", r"-lr=0 xzzy\b b ßqx=1 100%#1"]
"""Names that `NAME` would match as a pattern."""


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    for name in (NAME, *OTHERS):
        (tmp_path / name).mkdir()
    return tmp_path / NAME


def test_names_that_are_patterns_are_refused(tmp_path: Path) -> None:
    for name in ("lr=[0.1]", "a*b", "what?"):
        with pytest.raises(ExperimentError, match=r"TensorFlow reads '.*' in .* as a pattern"):
            launch(tiny_model(trainer__experiment_base_dir=str(tmp_path), trainer__experiment_name=name))
        assert not (tmp_path / name).exists()
        with pytest.raises(ExperimentError, match="as a pattern"):
            read_tensors(tmp_path / name / "model")


def test_run_resumes_and_weights_load(tmp_path: Path) -> None:
    odd = tmp_path / "{a,b} ßx=1 100%#1"

    def run(name: str, steps: int, **more: Any) -> TowerTrainer:
        keys = {"trainer__experiment_base_dir": str(odd), "trainer__experiment_name": name, "model__num_steps": steps}
        return launch(tiny_model(**keys, **more), callbacks=[ModelSaver()])

    first, resumed = run("run", 3), run("run", 6)
    assert "resumed at step 3" in (odd / "run" / "train.log").read_text()
    other = run("other", 0, model__weights_load_path=str(odd / "run"))
    np.testing.assert_array_equal(other.built.variables["fc0/kernel"], resumed.built.variables["fc0/kernel"])
    assert not np.array_equal(first.built.variables["fc0/kernel"], resumed.built.variables["fc0/kernel"])
    assert sorted(run.name for run in find_runs(odd)) == ["other", "run"]


def test_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.csv").write_text("y\n4\n")
    assert Experiment("~/run").directory == tmp_path / "run"
    assert labels(readers.csv("~/a.csv", features=Y)) == [4]


def test_database_of_a_sweep(odd: Path) -> None:
    optuna.create_study(storage=open_storage(sqlite_url(odd / "s.sweep.db")), study_name="s")
    assert [file.name for file in odd.iterdir()] == ["s.sweep.db"]


def test_readers(odd: Path) -> None:
    for other in odd.parent.iterdir():
        write_records(str(other / "1.tfrecord"), [1 if other == odd else 5])
    write_records(str(odd / "[12]*.tfrecord"), [2])
    write_records(str(odd / "22.tfrecord"), [3])
    assert labels(readers.tfrecords(odd / "1.tfrecord", features=Y)) == [1]
    assert labels(readers.tfrecords(odd / "[12]*.tfrecord", features=Y)) == [2]
    assert labels(readers.tfrecords(odd / "[12].tfrecord", features=Y)) == [1]
    assert sorted(labels(readers.tfrecords(odd / "*.tfrecord", features=Y))) == [1, 2, 3]
    assert labels(readers.tfrecords(odd / "**" / "2*", features=Y)) == [3]
    (odd / "a.csv").write_text("y\n4\n")
    assert labels(readers.csv(odd / "a.csv", features=Y)) == [4]
    (odd / "[cat]").mkdir()
    (odd / "[cat]" / "*.png").write_bytes(tf.io.encode_png(np.zeros((2, 2, 3), np.uint8)).numpy())
    assert len(list(readers.image_folder(odd, size=(2, 2)))) == 1
    with pytest.raises(DataError, match="matches no file"):
        readers.tfrecords(odd / "3*", features=Y)


def test_storages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / "cache"))
    base = f"memory://{uuid.uuid4().hex}"
    records = Path(write_records(str(tmp_path / "r"), [1])).read_bytes()
    others = [f"{other}/1.tfrecord" for other in OTHERS]
    for file in (*others, f"{NAME}/1.tfrecord", f"{NAME}/[1].tfrecord"):
        Storage(base).write(file, records)
    storage = Storage(f"{base}/{NAME}")
    assert labels(readers.tfrecords(f"{base}/{NAME}/*.tfrecord", features=Y)) == [1, 1]
    assert labels(readers.tfrecords(f"{base}/{NAME}/[1].tfrecord", features=Y)) == [1]
    storage.delete(["1.tfrecord", "[1].tfrecord", "gone"])
    assert sorted(Storage(base).listing()) == sorted(others)
