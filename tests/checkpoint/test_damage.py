"""Damaged checkpoints, read-only disks, moved directories: the previous checkpoint, or one clear error."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from prototrain import Experiment
from prototrain.callbacks import SaveOnExit
from prototrain.checkpoint.store import META, verify
from prototrain.errors import CheckpointError, ExperimentError
from tests.checkpoint.test_store import make_dangling, make_empty, make_file, rewrite_meta
from tests.tiny import CountingTrainer, tiny_trainer, values

PREVIOUS, NEWEST = "step-0000000003", "step-0000000006"
OTHER = f"other/checkpoints/{NEWEST}"
FILES = ["data.data-00000-of-00001", "data.index", "meta.json", "model.data-00000-of-00001", "model.index"]


class Bench:
    """A run with two checkpoints, a checkpoint of another run, and a trainer into which copies can be restored."""

    def __init__(self, directory: Path) -> None:
        self.run, self.other, self._directory = directory / "run", directory / "other", directory
        self.at: dict[str, dict[str, bytes]] = {}
        for path, seed in ((self.other, 2), (self.run, 1)):
            self.trainer = tiny_trainer(path, trainer__random_seed=seed)
            for steps in (3, 6) if seed == 1 else (6,):
                self.trainer.train([SaveOnExit()], max_steps=steps)
                self.at[f"{path.name}/step-{steps:010d}"] = values(self.trainer)
        self._copies = 0

    def copy(self) -> Path:
        """A fresh copy of the run's directory; returns its checkpoints."""
        self._copies += 1
        target = self._directory / str(self._copies)
        shutil.copytree(self.run, target)
        return target / "checkpoints"

    def restore(self, checkpoints: Path) -> str:
        """Restore the newest valid checkpoint; returns the step in its name, or "" if nothing was restored."""
        self.trainer.global_step = 0
        self.trainer.experiment = Experiment(checkpoints.parent)
        self.trainer.run.restore(True)
        self.trainer.run._clean_up()
        resumed = self.trainer.run.checkpoint
        return "" if resumed is None else resumed.path.name


Damage = Callable[[Bench, Path], Any]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def falls_back(bench: Bench, checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the previous checkpoint is restored exactly, with a warning, and that nothing is lost."""
    capsys.readouterr()
    assert bench.restore(checkpoints) == PREVIOUS
    assert values(bench.trainer) == bench.at[f"run/{PREVIOUS}"]
    said = capsys.readouterr().out
    assert f"WARNING: checkpoint {checkpoints / NEWEST} " in said
    assert "WARNING: falling back to the checkpoint of step 3" in said
    assert sorted(path.name for path in checkpoints.iterdir()) == [f".bad-{NEWEST}", PREVIOUS]
    assert bench.restore(checkpoints) == PREVIOUS  # the second time without a message
    assert "WARNING" not in capsys.readouterr().out


def test_files_of_a_checkpoint(bench: Bench) -> None:
    assert sorted(path.name for path in (bench.run / "checkpoints" / NEWEST).iterdir()) == FILES
    assert bench.restore(bench.copy()) == NEWEST
    assert values(bench.trainer) == bench.at[f"run/{NEWEST}"]


def truncated(name: str, left: float) -> Damage:
    def damage(bench: Bench, newest: Path) -> None:
        size = (newest / name).stat().st_size
        os.truncate(newest / name, size - 2 if left < 0 else int(left * size))  # meta.json ends with a newline

    return damage


def deleted(name: str) -> Damage:
    return lambda bench, newest: (newest / name).unlink()


def exchanged(name: str, source: str) -> Damage:
    return lambda bench, newest: shutil.copy(bench.run.parent / source / name, newest / name)


def replaced(source: str) -> Damage:
    def damage(bench: Bench, newest: Path) -> None:
        shutil.rmtree(newest)
        shutil.copytree(bench.run.parent / source, newest)

    return damage


def changed(change: Callable[[Path], None]) -> Damage:
    return lambda bench, newest: change(newest)


DAMAGES: list[Damage] = [
    *(replaced(source) for source in (OTHER, f"run/checkpoints/{PREVIOUS}")),
    *(changed(change) for change in (make_empty, make_file, make_dangling)),
    *(truncated(name, left) for name in FILES for left in (0.5, -2)),
    *(deleted(name) for name in FILES),
    *(exchanged(name, OTHER) for name in FILES if not name.endswith(".index")),
    *(exchanged(name, f"run/checkpoints/{PREVIOUS}") for name in FILES if not name.endswith(".index")),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint(bench: Bench, capsys: pytest.CaptureFixture[str], damage: Damage) -> None:
    checkpoints = bench.copy()
    damage(bench, checkpoints / NEWEST)
    falls_back(bench, checkpoints, capsys)


@pytest.mark.parametrize("name", FILES)
def test_flipped_bits(bench: Bench, capsys: pytest.CaptureFixture[str], name: str) -> None:
    checkpoints = bench.copy()
    file = checkpoints / NEWEST / name
    content = file.read_bytes()
    # Every byte of a small file, 60 bytes of a large one; a different bit each time.
    places = range(0, len(content), max(1, len(content) // 60))
    for number, place in enumerate(places):
        flipped = bytearray(content)
        flipped[place] ^= 1 << number % 8
        file.write_bytes(flipped)
        with pytest.raises(CheckpointError):
            verify(checkpoints / NEWEST)
    falls_back(bench, checkpoints, capsys)


@pytest.mark.parametrize("damage", [replaced(OTHER), changed(make_file)])
def test_error_if_all_are_damaged(bench: Bench, damage: Damage) -> None:
    checkpoints = bench.copy()
    damage(bench, checkpoints / NEWEST)
    (checkpoints / PREVIOUS / META).unlink()
    before, live = sorted(checkpoints.iterdir()), values(bench.trainer)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"none of the checkpoints in .* can be used; .*--fresh"):
            bench.restore(checkpoints)
        assert values(bench.trainer) == live and bench.trainer.global_step == 0
        assert sorted(checkpoints.iterdir()) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta["callbacks"].update(done=3),
        lambda meta: meta["random"].update(python=[1, 2]),
        lambda meta: meta["parts"].pop("data"),
        lambda meta: meta["parts"]["data"].pop("fingerprint"),
        lambda meta: meta["callbacks"].pop("unfinished"),
        *(methodcaller("pop", key) for key in ("values", "callbacks", "monitors", "outputs", "random", "facts")),
    ],
)
def test_valid_checkpoint_of_another_form_changes_nothing(bench: Bench, change: Callable[[Any], Any]) -> None:
    checkpoints = bench.copy()
    rewrite_meta(checkpoints / NEWEST, change)
    live = values(bench.trainer)
    with pytest.raises(CheckpointError):
        bench.restore(checkpoints)
    assert values(bench.trainer) == live and bench.trainer.global_step == 0


@pytest.mark.parametrize("how", ["moved", "environment.json is lost", "environment.json is damaged"])
def test_moved_directory(bench: Bench, capsys: pytest.CaptureFixture[str], how: str) -> None:
    directory = bench.copy().parent
    if how == "moved":
        directory = directory.rename(directory.with_name("moved"))
    else:
        environment = directory / "environment.json"
        environment.write_text("{") if "damaged" in how else environment.unlink()
    trainer = tiny_trainer(directory, trainer__random_seed=1)
    trainer.train([SaveOnExit()], max_steps=7)
    assert trainer.run.start_row().startswith("resumed at step 6")
    assert "took over the lock" not in capsys.readouterr().out
    assert trainer.run.checkpoints.steps() == [3, 6, 7]
    ids = {verify(path).meta["run_id"] for path in (directory / "checkpoints").iterdir()}
    assert ids == {trainer.experiment.run_id}


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted disk: root ignores permissions."""
    path = tmp_path / "disk"
    path.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command here")
    mount("-t", "tmpfs", "-o", "size=400k", "tmpfs", str(path))
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_read_only_directory(disk: Path) -> None:
    CountingTrainer(experiment=disk / "run").train([SaveOnExit()], max_steps=2)
    mount("-o", "remount,ro", str(disk))
    for name in ("run", "new"):
        with pytest.raises(ExperimentError, match=r"cannot use the experiment directory .*: Read-only file system"):
            CountingTrainer(experiment=disk / name).train([SaveOnExit()], max_steps=4)
