"""Damaged checkpoints, full and read-only disks, moved directories: the previous checkpoint, or one clear error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from prototrain import Callback, Experiment
from prototrain.callbacks import JSONWriter, ModelSaver, SaveOnExit, Summaries, TensorBoardWriter
from prototrain.checkpoint.store import META, verify
from prototrain.errors import CheckpointError, ExperimentError
from tests.checkpoint.test_store import make_dangling, make_empty, make_file, rewrite_meta
from tests.tiny import CountingTrainer, tiny_trainer, values

PREVIOUS, NEWEST = "step-0000000003", "step-0000000006"
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
    assert f"WARNING: checkpoint {checkpoints / NEWEST} is " in said
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


def of_another_run(bench: Bench, newest: Path) -> None:
    shutil.rmtree(newest)
    shutil.copytree(bench.other / "checkpoints" / NEWEST, newest)


def of_another_step(bench: Bench, newest: Path) -> None:
    shutil.rmtree(newest)
    shutil.copytree(newest.with_name(PREVIOUS), newest)


def changed(change: Callable[[Path], None]) -> Damage:
    return lambda bench, newest: change(newest)


WHOLE: list[Damage] = [
    *(of_another_run, of_another_step),
    *(changed(change) for change in (make_empty, make_file, make_dangling)),
]
OF_FILES: list[Damage] = [
    *(truncated(name, left) for name in FILES for left in (0.5, -2)),
    *(deleted(name) for name in FILES),
    *(exchanged(name, f"other/checkpoints/{NEWEST}") for name in FILES if not name.endswith(".index")),
    *(exchanged(name, f"run/checkpoints/{PREVIOUS}") for name in FILES if not name.endswith(".index")),
]


@pytest.mark.parametrize("damage", [*WHOLE, *OF_FILES])
def test_damaged_checkpoint_falls_back_to_the_previous(
    bench: Bench, capsys: pytest.CaptureFixture[str], damage: Damage
) -> None:
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


@pytest.mark.parametrize("damage", [of_another_run, changed(make_file)])
def test_error_if_all_are_damaged(bench: Bench, damage: Damage) -> None:
    checkpoints = bench.copy()
    damage(bench, checkpoints / NEWEST)
    (checkpoints / PREVIOUS / META).unlink()
    before, live = sorted(checkpoints.iterdir()), values(bench.trainer)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"none of the checkpoints in .* can be used, .*--fresh"):
            bench.restore(checkpoints)
        assert values(bench.trainer) == live and bench.trainer.global_step == 0
        assert sorted(checkpoints.iterdir()) == before


def break_callbacks(meta: dict[str, Any]) -> None:
    meta["callbacks"]["epoch_begun_at"] = "sleep"


def break_random(meta: dict[str, Any]) -> None:
    meta["random"]["python"] = [1, 2]


def drop(*keys: str) -> Callable[[dict[str, Any]], None]:
    def change(meta: dict[str, Any]) -> None:
        for key in keys[:-1]:
            meta = meta[key]
        del meta[keys[-1]]

    return change


@pytest.mark.parametrize(
    "change",
    [break_callbacks, break_random]
    + [drop(key) for key in ("values", "callbacks", "monitors", "outputs", "random", "facts")]
    + [drop("parts", "data"), drop("parts", "data", "fingerprint"), drop("callbacks", "unfinished")],
)
def test_valid_checkpoint_of_another_form_changes_nothing(
    bench: Bench, change: Callable[[dict[str, Any]], None]
) -> None:
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
    assert trainer.run.resume_line().startswith("resumed at step 6")
    assert "took over the lock" not in capsys.readouterr().out
    assert trainer.run.checkpoints.steps() == [3, 6, 7]
    ids = {verify(path).meta["run_id"] for path in (directory / "checkpoints").iterdir()}
    assert ids == {trainer.experiment.run_id}


# The files of the monitors match the restored checkpoint.


def writers() -> list[Callback]:
    return [Summaries().every(steps=1), JSONWriter(), TensorBoardWriter(), ModelSaver().every(steps=2), SaveOnExit()]


def test_metrics_and_events_match_the_restored_checkpoint(experiment: Path) -> None:
    CountingTrainer(experiment=experiment).train(writers(), max_steps=6)
    (experiment / "checkpoints" / "step-0000000006" / META).unlink()
    with open(experiment / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "trn/lo')
    resumed = CountingTrainer(experiment=experiment)
    resumed.train(writers(), max_steps=8)
    assert resumed.run.checkpoint is not None and resumed.run.checkpoint.step == 4
    rows = [json.loads(line) for line in (experiment / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8]
    aside = (experiment / "metrics.superseded.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in aside if line.endswith("}")] == [5, 6]
    events = EventAccumulator(str(experiment / "summaries" / "trn"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6, 7, 8]


# Disks. Root ignores permissions and quotas, so these are real mounts.


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 KB."""
    path = tmp_path / "disk"
    path.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command here")
    mount("-t", "tmpfs", "-o", "size=400k", "tmpfs", str(path))
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


class FillsDisk(Callback):
    """Fills a disk after one step, and frees it after another."""

    priority = 0

    def __init__(self, disk: Path, first: int, last: int | None = None) -> None:
        self.file, self.first, self.last = disk / "filler", first, last

    def trigger_step(self) -> None:
        if self.trainer.global_step == self.first:
            with pytest.raises(OSError, match="No space left"), open(self.file, "wb", buffering=0) as file:
                while file.write(b"x" * 512):
                    pass
        elif self.trainer.global_step == self.last:
            self.file.unlink()


class Chatty(Callback):
    """Records so much that every file needs a new page for the next step."""

    def trigger_step(self) -> None:
        for number in range(150):
            self.trainer.monitors.put_scalar(f"trn/{number}", number)


class Heavy(CountingTrainer):
    """A trainer whose checkpoint takes several pages."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.state["weights"] = tf.Variable(tf.zeros([3000]))


def test_temporarily_full_disk(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = disk / "run"
    Heavy(experiment=run).train([FillsDisk(disk, 3, 6), Chatty(), *writers()], max_steps=8)
    said = capsys.readouterr().out
    assert said.count("WARNING: cannot save step 4 to") == 1 and "No space left on device; training continues" in said
    for path in (run / "metrics.jsonl", f"to {run / 'summaries'}"):
        assert said.count(f"WARNING: cannot write {path}: ") == 1
    assert said.count("No space left on device; trying again later") == 2
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [f"step-{n:010d}" for n in (2, 6, 8)]
    rows = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows == list(range(1, 9))
    events = EventAccumulator(str(run / "summaries" / "trn"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, 9))
    resumed = Heavy(experiment=run)
    resumed.train(writers(), max_steps=9)
    assert resumed.state["total"] == 45


def test_full_disk_at_exit(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = disk / "run"
    with pytest.raises(CheckpointError, match=r"cannot save step 5 to .*: No space left on device"):
        Heavy(experiment=run).train([FillsDisk(disk, 3), Chatty(), *writers()], max_steps=5)
    assert "lacks the rows since step" in capsys.readouterr().out
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-0000000002"]
    (disk / "filler").unlink()
    resumed = Heavy(experiment=run)
    resumed.train(writers(), max_steps=5)
    assert resumed.state["total"] == 15


def test_read_only_directory(experiment: Path, disk: Path) -> None:
    CountingTrainer(experiment=disk / "run").train(writers(), max_steps=2)
    mount("-o", "remount,ro", str(disk))
    with pytest.raises(ExperimentError, match=r"cannot use the experiment directory .*: Read-only file system"):
        CountingTrainer(experiment=disk / "run").train(writers(), max_steps=4)
    with pytest.raises(ExperimentError, match=r"cannot use the experiment directory .*: Read-only file system"):
        CountingTrainer(experiment=disk / "new").train(writers(), max_steps=4)
