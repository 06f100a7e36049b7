"""The experiment directory: lock, files and deletion."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from prototrain import Experiment
from prototrain.callbacks import SaveOnExit
from prototrain.errors import ExperimentError
from prototrain.experiment import source_of
from tests import tiny
from tests.tiny import CountingTrainer, tiny_config


def test_from_config_with_a_timestamp(tmp_path: Path) -> None:
    config = tiny_config(trainer__experiment_base_dir=str(tmp_path), trainer__experiment_name="run-{timestamp}")
    directory = Experiment.from_config(config).directory
    assert directory.parent == tmp_path
    assert re.fullmatch(r"run-\d{8}-\d{6}", directory.name)


def test_uncreatable_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExperimentError, match=r"cannot use the experiment directory .*file/run: Not a directory"):
        Experiment(tmp_path / "file" / "run").lock()


def test_files_at_the_start(experiment: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("a = 1\n")
    (package / "sub" / "more.py").write_text("b = 2\n")
    (package / "data.bin").write_bytes(b"large")
    run = Experiment(experiment)
    run.lock()
    run.write_start(config=tiny_config(), sources=[package, Path(tiny.__file__)], devices=["CPU:0"])
    found = {str(path.relative_to(experiment / "source")) for path in (experiment / "source").rglob("*.py")}
    assert found == {"package/__init__.py", "package/sub/more.py", "tiny.py"}
    assert not list((experiment / "source").rglob("*.bin"))
    environment = json.loads((experiment / "environment.json").read_text())
    assert environment["devices"] == ["CPU:0"]
    assert {"command", "versions", "git_commit", "run_id"} <= set(environment)
    assert (experiment / "config.json").exists()
    first = run.run_id
    run.write_start(config=None, sources=[], devices=[])
    assert run.run_id == first is not None
    run.unlock()


def test_source_of() -> None:
    assert source_of(CountingTrainer()) == Path(tiny.__file__)
    assert source_of(tiny) == Path(tiny.__file__)
    assert source_of(json) == Path(json.__file__).parent
    assert source_of(3) is None


def test_delete_leaves_an_empty_locked_directory(experiment: Path) -> None:
    CountingTrainer(experiment=experiment).train([SaveOnExit()], max_steps=2)
    (experiment / ".tmp-config.json-123").write_text("left by a killed write")
    CountingTrainer(experiment=experiment).train([SaveOnExit()], max_steps=2, resume=False)  # checkpoints.superseded-1
    run = Experiment(experiment)
    assert run.exists()
    run.delete()
    assert [path.name for path in experiment.iterdir()] == [".lock"]
    assert not run.exists()
    with pytest.raises(ExperimentError, match="in use"):
        Experiment(experiment).lock()
    run.unlock()


def test_only_experiments_are_deleted(experiment: Path, tmp_path: Path) -> None:
    CountingTrainer(experiment=experiment).train([SaveOnExit()], max_steps=1)
    with_notes, repository, other, link = (tmp_path / name for name in ("notes", "repository", "other", "link"))
    shutil.copytree(experiment, with_notes)
    (with_notes / "notes.txt").write_text("mine")
    shutil.copytree(experiment, repository)
    (repository / ".git").mkdir()
    (other / "source").mkdir(parents=True)
    link.symlink_to(experiment)
    running = Experiment(experiment)
    running.lock()
    before = sorted(tmp_path.rglob("*"))
    for directory, words in {
        with_notes: "it holds 'notes.txt'",
        repository: "it holds '.git'",
        other: "does not look like an experiment",
        link: "it is a link",
        experiment: "in use",
    }.items():
        with pytest.raises(ExperimentError, match=words):
            Experiment(directory).delete()
    assert sorted(tmp_path.rglob("*")) == before
    running.unlock()
