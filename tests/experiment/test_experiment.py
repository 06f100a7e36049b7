"""The experiment directory: files, deletion, lock, links and odd names."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from prototrain import Experiment, StopTraining
from prototrain.callbacks import CallbackFactory, JSONWriter, SaveOnExit, Summaries
from prototrain.cli import main
from prototrain.errors import CallbackError, ExperimentError
from prototrain.experiment.lock import LOCK, DirectoryLock, is_locked
from prototrain.experiment.record import Attempt, read_attempts
from tests import tiny
from tests.made import make, part
from tests.tiny import At, CountingTrainer, raising, tiny_config


def test_from_config_with_a_timestamp(tmp_path: Path) -> None:
    config = tiny_config(trainer__experiment_base_dir=str(tmp_path), trainer__experiment_name="run-{timestamp}")
    directory = Experiment.from_config(config).directory
    assert directory.parent == tmp_path
    assert re.fullmatch(r"run-\d{8}-\d{6}", directory.name)


def test_files_at_the_start(experiment: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("a = 1\n")
    (package / "sub" / "more.py").write_text("b = 2\n")
    (package / "data.bin").write_bytes(b"large")
    for copied in ("experiments/run/source/package", "experiments/run", ".venv"):
        (package / copied).mkdir(parents=True, exist_ok=True)
        (package / copied / "copy.py").write_text("c = 3\n")
    (package / "experiments" / "run" / "environment.json").write_text("{}")
    run = Experiment(experiment)
    run.lock()
    run.write_start(config=tiny_config(), sources=[package, Path(tiny.__file__)], origin={"devices": ["CPU:0"]})
    found = {str(path.relative_to(experiment / "source")) for path in (experiment / "source").rglob("*.py")}
    assert found == {"package/__init__.py", "package/sub/more.py", "tiny.py"}
    assert not list((experiment / "source").rglob("*.bin"))
    environment = json.loads((experiment / "environment.json").read_text())
    assert environment["devices"] == ["CPU:0"]
    assert {"command", "versions", "git_commit", "run_id"} <= set(environment)
    assert (experiment / "config.json").exists()
    first = run.run_id
    run.write_start(config=None, sources=[])
    assert run.run_id == first is not None
    run.unlock()


def test_delete_leaves_an_empty_locked_directory(experiment: Path) -> None:
    CountingTrainer(experiment=experiment).train([SaveOnExit()], max_steps=2)
    (experiment / ".tmp-config.json-123").write_text("left by a killed write")
    CountingTrainer(experiment=experiment).train([SaveOnExit()], max_steps=2, resume=False)  # checkpoints.superseded
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


def test_lock_is_exclusive(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path / "run"), DirectoryLock(tmp_path / "run")
    path = tmp_path / "run" / LOCK
    assert not is_locked(path)
    assert first.take() is None and first.take() is None
    assert is_locked(path)
    with pytest.raises(ExperimentError, match=f"run is in use by another run \\(process {os.getpid()} on "):
        second.take()
    with pytest.raises(ExperimentError, match="in use"):
        second.check_free()
    first.release()
    assert not is_locked(path)
    second.check_free()
    assert second.take() is None
    second.release()


def test_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = DirectoryLock(tmp_path)
    assert str(lock.take()).startswith(f"WARNING: cannot lock {tmp_path} (No locks available)")
    assert not is_locked(tmp_path / LOCK)
    lock.check_free()
    lock.release()


def train(experiment: Path, max_steps: int, *, fresh: bool = False) -> int:
    trainer = CountingTrainer(experiment=experiment)
    trainer.train([Summaries(), JSONWriter(), SaveOnExit()], max_steps=max_steps, fresh=fresh)
    return trainer.run.began_at


def test_checkpoints_on_another_disk(experiment: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    experiment.mkdir()
    (experiment / "environment.json").write_text("{}")
    (experiment / "checkpoints").symlink_to(other)
    assert train(experiment, 2) == 0 and train(experiment, 4) == 2
    assert sorted(path.name for path in other.iterdir()) == ["step-0000000002", "step-0000000004"]
    assert main(["runs", str(tmp_path)]) == 0
    assert train(experiment, 2, fresh=True) == 0
    assert len(list(other.iterdir())) == 2, "deleting an experiment deletes the link only"
    link = experiment.with_name("link")
    link.symlink_to(experiment)
    assert train(link, 3) == 2


def test_names_are_escaped_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\r\nname"
    rows = [{"step": 1, "time": 1.0, f"trn/{evil}": 0.5, "trn/loss": 1.0}]
    reason = part(state="failed", reason=evil, changes=[[evil, evil, evil]])
    first = make(
        tmp_path / f"a{evil}", reason, rows=rows, config={evil: evil}, environment={"run_id": evil, evil: evil}
    )
    second = make(tmp_path / "b", part(), rows=rows)
    (second / "config.json").write_text("{" + evil)
    commands = [["runs", str(tmp_path)], ["compare", str(first), str(first)], ["compare", str(first), str(second)]]
    for arguments in [*commands, ["report", str(first), "-o", str(tmp_path / evil / "none" / "x")]]:
        main(arguments)
        shown = "".join(capsys.readouterr())
        assert shown and not {"\x1b", "\x07", "\r"} & set(shown)
        assert "name" not in shown.splitlines()
    assert json.loads((first / "run.json").read_text())["parts"][0]["reason"] == evil


def parts(experiment: Path) -> list[Attempt]:
    return read_attempts(experiment / "run.json")


ENDS = [
    (StopTraining("good enough"), "finished", "good enough", None),
    (StopTraining(), "finished", "requested by a callback", None),
    (ValueError("two\nlines"), "failed", "ValueError: two lines", ValueError),
    (CallbackError("a\nb"), "failed", "a b (tiny.py, line LINE, in trigger_step of At)", CallbackError),
    (signal.SIGINT, "interrupted", "SIGINT", KeyboardInterrupt),
    (signal.SIGTERM, "interrupted", "SIGTERM", SystemExit),
    (SystemExit(7), "interrupted", "SystemExit: 7", SystemExit),
]


@pytest.mark.parametrize(("event", "state", "reason", "raised"), ENDS, ids=[f"{end[0]!r}" for end in ENDS])
def test_outcomes(event: Any, state: str, reason: str, raised: Any, experiment: Path) -> None:
    trainer = CountingTrainer(experiment=experiment)
    is_signal = isinstance(event, signal.Signals)
    happens = At(3, (lambda: trainer.stop.request(event)) if is_signal else raising(event))
    with nullcontext() if raised is None else pytest.raises(raised):
        trainer.train([happens], max_steps=5)
    (part,) = parts(experiment)
    assert re.sub(r"line \d+", "line LINE", part.reason or "") == reason
    assert (part.state, part.first_step, part.step, part.total_steps) == (state, 0, 3, 5)
    assert part.seconds is not None and part.start == "fresh" and list(part.callbacks) == ["At"]


def test_running_state_and_host(experiment: Path) -> None:
    seen: list[list[Attempt]] = []

    look = CallbackFactory(before_train=lambda self: seen.append(parts(experiment)))
    for steps in (2, 4):
        CountingTrainer(experiment=experiment).train([look, SaveOnExit()], max_steps=steps)
    assert [[part.state for part in found] for found in seen] == [["running"], ["finished", "running"]]
    assert [(part.first_step, part.step, part.seconds) for part in seen[1]][1] == (2, None, None)
    first, second = parts(experiment)
    assert (first.step, first.reason, second.first_step, second.step) == (2, None, 2, 4)
    assert second.start == "resumed at step 2"


def test_changes_from_the_models_defaults(experiment: Path) -> None:
    trainer = CountingTrainer(experiment=experiment)
    trainer.config = tiny_config()
    trainer.train(max_steps=1)
    assert parts(experiment)[0].changes is None
    trainer.config.keep_defaults()
    trainer.config["model.num_steps"] = 1
    trainer.config["own.key"] = [1, 2]
    trainer.train(max_steps=2)
    assert parts(experiment)[1].changes == [["model.num_steps", 2, 20], ["own.key", [1, 2], "(unset)"]]


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"parts": [{}]}', '{"parts": [{"started": "now"}]}', '{"parts": [{"started": 1, "changes": [[1]]}]}'],
)
def test_damaged_record_is_rewritten(content: str, experiment: Path) -> None:
    experiment.mkdir()
    (experiment / "run.json").write_text(content)
    with pytest.raises(ExperimentError, match=r"run\.json is damaged"):
        parts(experiment)
    CountingTrainer(experiment=experiment).train(max_steps=1)
    assert len(parts(experiment)) == 1


def test_unwritable_record_does_not_end_the_run(experiment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (experiment / "run.json").mkdir(parents=True)
    with pytest.raises(ExperimentError, match=r"cannot read .*run\.json: Is a directory"):
        parts(experiment)
    trainer = CountingTrainer(experiment=experiment)
    trainer.train(max_steps=2)
    assert trainer.global_step == 2
    assert f"WARNING: cannot write {experiment}/run.json: Is a directory" in capfd.readouterr().out
