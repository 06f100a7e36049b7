"""Damaged checkpoints, full and read-only disks, moved and contested directories: the previous good checkpoint, said
loudly, or one clear line; never a silent restart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from prototrain import Callback, Experiment, SimpleTrainer
from prototrain.callbacks import JSONWriter, ModelSaver, SaveOnExit, Summaries, TensorBoardWriter
from prototrain.checkpoint import META, Checkpoints, verify
from prototrain.checkpoint.files import UnknownFormatError
from prototrain.cli import main
from prototrain.errors import CheckpointError, ExperimentError
from tests.checkpoint.test_store import rewrite_meta
from tests.tiny import CountingTrainer, tiny_arrays, tiny_model, tiny_trainer, values

PREVIOUS, NEWEST = "step-0000000003", "step-0000000006"
FILES = ["data.data-00000-of-00001", "data.index", "meta.json", "model.data-00000-of-00001", "model.index"]


class Bench:
    """A run with two checkpoints, one of another run, and a trainer that copies of the first can be restored into."""

    def __init__(self, directory: Path) -> None:
        self.run, self.other, self._directory = directory / "run", directory / "other", directory
        self.at: dict[str, dict[str, bytes]] = {}
        for path, seed in ((self.other, 2), (self.run, 1)):
            self.trainer = tiny_trainer(path, trainer__random_seed=seed)
            for steps in (3, 6):
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
        """Restore what there is; returns the step in the checkpoint's name, and "" if nothing was restored."""
        self.trainer.global_step = 0
        self.trainer.experiment = Experiment(checkpoints.parent)
        self.trainer.run.restore(True)
        self.trainer.run._tidy()
        resumed = self.trainer.run.checkpoint
        return "" if resumed is None else resumed.path.name


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def falls_back(bench: Bench, checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the previous checkpoint is restored in every bit, loudly, and that nothing is lost."""
    capsys.readouterr()
    assert bench.restore(checkpoints) == PREVIOUS
    assert values(bench.trainer) == bench.at[f"run/{PREVIOUS}"]
    said = capsys.readouterr().out
    assert f"WARNING: checkpoint {checkpoints / NEWEST} is " in said
    assert "WARNING: falling back to the checkpoint of step 3" in said
    assert sorted(path.name for path in checkpoints.iterdir()) == [f".bad-{NEWEST}", PREVIOUS]
    assert bench.restore(checkpoints) == PREVIOUS  # the second time without a word
    assert "WARNING" not in capsys.readouterr().out


def test_what_a_checkpoint_is_made_of(bench: Bench) -> None:
    assert sorted(path.name for path in (bench.run / "checkpoints" / NEWEST).iterdir()) == FILES
    assert bench.restore(bench.copy()) == NEWEST
    assert values(bench.trainer) == bench.at[f"run/{NEWEST}"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("left", [0, 1, 0.3, 0.9, -2])  # the last byte of meta.json is a line's end
def test_a_truncated_file(bench: Bench, capsys: pytest.CaptureFixture[str], name: str, left: float) -> None:
    checkpoints = bench.copy()
    file = checkpoints / NEWEST / name
    size = file.stat().st_size
    os.truncate(file, size - 2 if left < 0 else int(left if left in (0, 1) else left * size))
    falls_back(bench, checkpoints, capsys)


@pytest.mark.parametrize("name", FILES)
def test_a_deleted_file(bench: Bench, capsys: pytest.CaptureFixture[str], name: str) -> None:
    checkpoints = bench.copy()
    (checkpoints / NEWEST / name).unlink()
    falls_back(bench, checkpoints, capsys)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("source", ["other/checkpoints/step-0000000006", "run/checkpoints/step-0000000003"])
def test_a_file_of_another_checkpoint(bench: Bench, capsys: pytest.CaptureFixture[str], name: str, source: str) -> None:
    checkpoints = bench.copy()
    theirs = bench.run.parent / source / name
    if theirs.read_bytes() == (checkpoints / NEWEST / name).read_bytes():
        assert name.endswith(".index")  # equal bytes: nothing is swapped
        return
    shutil.copy(theirs, checkpoints / NEWEST / name)
    falls_back(bench, checkpoints, capsys)


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_anywhere(bench: Bench, capsys: pytest.CaptureFixture[str], name: str) -> None:
    checkpoints = bench.copy()
    file = checkpoints / NEWEST / name
    content = file.read_bytes()
    # Every place in a small file, 300 in a large one; the bit changes along.
    places = range(0, len(content), max(1, len(content) // 300))
    for number, place in enumerate(places):
        flipped = bytearray(content)
        flipped[place] ^= 1 << number % 8
        file.write_bytes(flipped)
        with pytest.raises(CheckpointError):
            verify(checkpoints / NEWEST)
    falls_back(bench, checkpoints, capsys)


def of_another_run(bench: Bench, newest: Path) -> None:
    shutil.rmtree(newest)
    shutil.copytree(bench.other / "checkpoints" / NEWEST, newest)


def of_another_step(bench: Bench, newest: Path) -> None:
    shutil.rmtree(newest)
    shutil.copytree(newest.with_name(PREVIOUS), newest)


def emptied(bench: Bench, newest: Path) -> None:
    shutil.rmtree(newest)
    newest.mkdir()


def made_a_file(bench: Bench, newest: Path) -> None:
    shutil.rmtree(newest)
    newest.write_text("")


def made_a_dangling_link(bench: Bench, newest: Path) -> None:
    shutil.rmtree(newest)
    newest.symlink_to("nowhere")


def given_a_stray_bundle(bench: Bench, newest: Path) -> None:
    (newest / "data.data-00001-of-00002").write_text("")


WHOLE = [of_another_run, of_another_step, emptied, made_a_file, made_a_dangling_link, given_a_stray_bundle]


@pytest.mark.parametrize("damage", WHOLE)
def test_a_whole_directory(
    bench: Bench, capsys: pytest.CaptureFixture[str], damage: Callable[[Bench, Path], None]
) -> None:
    checkpoints = bench.copy()
    damage(bench, checkpoints / NEWEST)
    falls_back(bench, checkpoints, capsys)


@pytest.mark.parametrize("damage", WHOLE)
def test_all_of_them_damaged_is_an_error_every_time(bench: Bench, damage: Callable[[Bench, Path], None]) -> None:
    checkpoints = bench.copy()
    damage(bench, checkpoints / NEWEST)
    (checkpoints / PREVIOUS / META).unlink()
    before, live = sorted(checkpoints.iterdir()), values(bench.trainer)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints in .* can be used; .*--fresh"):
            bench.restore(checkpoints)
        assert values(bench.trainer) == live and bench.trainer.global_step == 0
        assert sorted(checkpoints.iterdir()) == before


def test_a_checkpoint_of_a_newer_version_is_left_alone(bench: Bench) -> None:
    checkpoints = bench.copy()
    rewrite_meta(checkpoints / NEWEST, lambda meta: meta.update(format=2))
    live = values(bench.trainer)
    for _ in range(2):
        with pytest.raises(UnknownFormatError, match=r"has format 2.*; use the version that wrote it"):
            bench.restore(checkpoints)
    assert sorted(path.name for path in checkpoints.iterdir()) == [PREVIOUS, NEWEST]
    assert values(bench.trainer) == live


def test_leftovers_of_killed_saves_are_swept(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = bench.copy()
    for name in (f".tmp-{NEWEST}-1", f".old-{PREVIOUS}-1", ".tmp-step-0000000009-1"):
        shutil.copytree(checkpoints / NEWEST, checkpoints / name)
    assert bench.restore(checkpoints) == NEWEST
    assert sorted(path.name for path in checkpoints.iterdir()) == [PREVIOUS, NEWEST]
    assert "WARNING" not in capsys.readouterr().out


def break_callbacks(meta: dict[str, Any]) -> None:
    meta["callbacks"]["epoch_begun_at"] = "sleep"


def break_random(meta: dict[str, Any]) -> None:
    meta["random"]["python"] = [1, 2]


def break_position(meta: dict[str, Any]) -> None:
    meta["parts"]["data"]["offset"] = 2**40


def drop(*keys: str) -> Callable[[dict[str, Any]], None]:
    def change(meta: dict[str, Any]) -> None:
        for key in keys[:-1]:
            meta = meta[key]
        del meta[keys[-1]]

    return change


@pytest.mark.parametrize(
    "change",
    [break_callbacks, break_random, break_position]
    + [drop(key) for key in ("values", "callbacks", "monitors", "outputs", "random", "facts")]
    + [drop("parts", "data"), drop("parts", "data", "fingerprint"), drop("callbacks", "unfinished")],
)
def test_a_whole_checkpoint_of_the_wrong_form_changes_nothing(
    bench: Bench, change: Callable[[dict[str, Any]], None]
) -> None:
    checkpoints = bench.copy()
    rewrite_meta(checkpoints / NEWEST, change)
    live = values(bench.trainer)
    with pytest.raises(CheckpointError):
        bench.restore(checkpoints)
    assert values(bench.trainer) == live and bench.trainer.global_step == 0


@pytest.mark.parametrize("how", ["moved", "copied", "environment.json is lost", "environment.json is damaged"])
def test_a_directory_that_is_still_the_run_s(bench: Bench, capsys: pytest.CaptureFixture[str], how: str) -> None:
    directory = bench.copy().parent
    if how == "moved":
        directory = directory.rename(directory.with_name("moved"))
    elif how != "copied":
        environment = directory / "environment.json"
        environment.write_text("{") if "damaged" in how else environment.unlink()
    trainer = tiny_trainer(directory, trainer__random_seed=1)
    trainer.train([SaveOnExit()], max_steps=7)
    assert trainer.run.resume_line().startswith("resumed at step 6")
    assert "took over the lock" not in capsys.readouterr().out
    assert trainer.run.checkpoints.steps() == [3, 6, 7]
    ids = {verify(path).meta["run_id"] for path in (directory / "checkpoints").iterdir()}
    assert ids == {trainer.experiment.run_id}


# What monitors have written agrees with the checkpoint that is taken.


def writers() -> list[Callback]:
    return [Summaries().every(steps=1), JSONWriter(), TensorBoardWriter(), ModelSaver().every(steps=2), SaveOnExit()]


def test_metrics_and_events_agree_with_the_checkpoint_that_is_taken(experiment: Path) -> None:
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
    assert [json.loads(line)["step"] for line in aside] == [5, 6]
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
    """Leaves no room on a disk after one step, and gives it back after another."""

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
    """Records so much that no file has room for the next step on its last page."""

    def trigger_step(self) -> None:
        for number in range(150):
            self.trainer.monitors.put_scalar(f"trn/{number}", number)


class Heavy(CountingTrainer):
    """Has a checkpoint of several pages."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.state["weights"] = tf.Variable(tf.zeros([3000]))


def test_a_disk_that_is_full_for_a_while(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_an_exit_save_that_has_no_room(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = disk / "run"
    with pytest.raises(CheckpointError, match=r"cannot save step 5 to .*: No space left on device"):
        Heavy(experiment=run).train([FillsDisk(disk, 3), Chatty(), *writers()], max_steps=5)
    assert "lacks the rows since step" in capsys.readouterr().out
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-0000000002"]
    (disk / "filler").unlink()
    resumed = Heavy(experiment=run)
    resumed.train(writers(), max_steps=5)
    assert resumed.state["total"] == 15


MODEL = """
from prototrain import Config, ModelDict
from tests.tiny import tiny_config, tiny_datasets
import keras

config = tiny_config(model__num_steps=2)
datasets = tiny_datasets

def build(inputs, train_phase):
    net = ModelDict()
    net.out = keras.layers.Dense(50_000, name="wide")(inputs["x"])
    net.loss = keras.ops.mean(net.out)
    return net
"""


def test_the_command_line_says_why_and_ends_with_1(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(disk)
    (disk / "wide_model.py").write_text(MODEL)
    assert main(["run", "wide_model"]) == 1
    said = capsys.readouterr()
    assert "WARNING: cannot save step 2 to" in said.out
    assert "prototrain: error: cannot save step 2 to" in said.err and "Traceback" not in said.err
    assert list((disk / "experiments" / "tiny" / "checkpoints").iterdir()) == []


def test_a_read_only_directory(experiment: Path, disk: Path) -> None:
    CountingTrainer(experiment=disk / "run").train(writers(), max_steps=2)
    mount("-o", "remount,ro", str(disk))
    with pytest.raises(ExperimentError, match=r"cannot use the experiment directory .*: Read-only file system"):
        CountingTrainer(experiment=disk / "run").train(writers(), max_steps=4)
    with pytest.raises(ExperimentError, match=r"cannot use the experiment directory .*: Read-only file system"):
        CountingTrainer(experiment=disk / "new").train(writers(), max_steps=4)


def test_checkpoints_on_a_read_only_disk(experiment: Path, disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CountingTrainer(experiment=experiment).train(writers(), max_steps=4)
    shutil.copytree(experiment / "checkpoints", disk / "checkpoints")
    (disk / "checkpoints" / "step-0000000004" / META).unlink()
    shutil.rmtree(experiment / "checkpoints")
    (experiment / "checkpoints").mkdir()
    mount("--bind", str(disk / "checkpoints"), str(experiment / "checkpoints"))
    try:
        mount("-o", "remount,ro,bind", str(experiment / "checkpoints"))
        trainer = CountingTrainer(experiment=experiment)
        with pytest.raises(CheckpointError, match=r"cannot save step 6 to .*Read-only file system"):
            trainer.train(writers(), max_steps=6)
        said = capsys.readouterr().out
        assert trainer.run.checkpoint is not None and trainer.run.checkpoint.step == 2
        assert "cannot set" in said and "WARNING: cannot save step 4" in said
        mount("-o", "remount,rw,bind", str(experiment / "checkpoints"))
        CountingTrainer(experiment=experiment).train(writers(), max_steps=6)
        assert Checkpoints(experiment / "checkpoints").steps() == [2, 4, 6]
    finally:
        subprocess.run(["umount", str(experiment / "checkpoints")], check=True)


# Two runs and one directory.

HOLDER = """
import sys
from prototrain.experiment import Experiment
experiment = Experiment(sys.argv[1])
experiment.lock()
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_second_run_is_refused_and_a_killed_one_replaced(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    CountingTrainer(experiment=experiment).train(writers(), max_steps=2)
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(experiment)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None and first.stdin is not None
        assert first.stdout.readline() == "locked\n"
        before = {path: path.stat().st_mtime_ns for path in experiment.rglob("*")}
        with pytest.raises(ExperimentError, match=rf"is in use by another run \(process {first.pid} on .*\); wait for"):
            CountingTrainer(experiment=experiment).train(writers(), max_steps=4)
        assert {path: path.stat().st_mtime_ns for path in experiment.rglob("*")} == before
        shutil.copytree(experiment, experiment.with_name("copy"))
        capsys.readouterr()
        CountingTrainer(experiment=experiment.with_name("copy")).train(writers(), max_steps=4)
        assert "took over the lock" not in capsys.readouterr().out  # the process lives, and has only the original
        first.send_signal(signal.SIGKILL)
        first.wait()
        CountingTrainer(experiment=experiment).train(writers(), max_steps=4)
        assert f"took over the lock of process {first.pid} on " in capsys.readouterr().out
    finally:
        first.kill()
        first.communicate()


# Datasets whose saved position would take the interpreter down.


def cached(directory: Path) -> Callable[[], dict[str, tf.data.Dataset]]:
    return lambda: {
        "trn": tf.data.Dataset.from_tensor_slices(tiny_arrays()).cache(str(directory / "cache")).shuffle(40).batch(8)
    }


def test_a_dataset_that_is_cached_in_a_file(tmp_path: Path) -> None:
    def trainer(name: str, cache: str) -> SimpleTrainer:
        (tmp_path / cache).mkdir(exist_ok=True)
        return SimpleTrainer(tiny_model(datasets=cached(tmp_path / cache)), experiment=tmp_path / name)

    whole = trainer("whole", "one")
    whole.train([], max_steps=9)
    for steps in (3, 7):  # in the first pass, which writes the file, and in the second
        stopped = trainer("stopped", "two")
        assert stopped.data.mode == "replay" and "two/cache" in stopped.data.reason
        stopped.train([SaveOnExit()], max_steps=steps)
        assert stopped.data.caveat is None
    shutil.copytree(tmp_path / "stopped", tmp_path / "copy")
    for name, gone in (("stopped", False), ("copy", True)):
        if gone:
            shutil.rmtree(tmp_path / "two")
        resumed = trainer(name, "two")
        resumed.train([SaveOnExit()], max_steps=9)
        assert ("two/cache, which is gone" in resumed.run.resume_line()) == gone
        assert (values(resumed) == values(whole)) == (not gone)
