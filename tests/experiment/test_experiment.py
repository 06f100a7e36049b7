"""The experiment directory: lock, files and deletion."""

from __future__ import annotations

import json
import re
import subprocess
import sys
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


def test_lock_of_a_killed_run_is_released(experiment: Path) -> None:
    code = "import os, sys; from prototrain.experiment import Experiment; Experiment(sys.argv[1]).lock(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, str(experiment)], check=False).returncode == 9
    mine = Experiment(experiment)
    said = mine.lock()
    mine.unlock()
    assert said is not None
    assert re.fullmatch(r"took over the lock of process \d+ on .*, which ended without giving it back", said)


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


@pytest.mark.parametrize("name", ["notes.txt", ".git"])
def test_directory_with_other_files_is_not_deleted(experiment: Path, name: str) -> None:
    CountingTrainer(experiment=experiment).train([SaveOnExit()], max_steps=1)
    (experiment / name).write_text("mine")
    before = sorted(experiment.rglob("*"))
    with pytest.raises(ExperimentError, match=re.escape(f"it holds '{name}'")):
        Experiment(experiment).delete()
    assert sorted(experiment.rglob("*")) == before


def test_other_directory_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(ExperimentError, match="does not look like an experiment"):
        Experiment(tmp_path).delete()
    assert (tmp_path / "source").exists()


def test_link_is_not_followed(experiment: Path, tmp_path: Path) -> None:
    CountingTrainer(experiment=experiment).train([SaveOnExit()], max_steps=1)
    (tmp_path / "link").symlink_to(experiment)
    with pytest.raises(ExperimentError, match="it is a link"):
        Experiment(tmp_path / "link").delete()
    assert (experiment / "environment.json").exists()


def test_running_experiment_is_not_deleted(experiment: Path) -> None:
    CountingTrainer(experiment=experiment).train([SaveOnExit()], max_steps=1)
    running = Experiment(experiment)
    running.lock()
    with pytest.raises(ExperimentError, match="in use"):
        Experiment(experiment).delete()
    running.unlock()
    assert (experiment / "environment.json").exists()
