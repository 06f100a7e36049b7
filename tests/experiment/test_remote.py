"""Experiments at URLs: interrupted uploads and failing storage lose nothing."""

from __future__ import annotations

import json
import platform
import shutil
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prototrain import Callback, SimpleTrainer
from prototrain.callbacks import JSONWriter, ModelSaver, SaveOnExit, Summaries, TensorBoardWriter
from prototrain.checkpoint.store import Checkpoints
from prototrain.checkpoint.weights import read_weights
from prototrain.cli import main
from prototrain.errors import ExperimentError, StorageError
from prototrain.experiment import Experiment, checkpoint_steps, lock, remote
from prototrain.experiment.record import has_saved
from prototrain.experiment.remote import Mirror, Remote, local_copy, url_of_copy
from prototrain.experiment.rows import rows_of
from prototrain.runs import find_runs, read_run
from prototrain.system import storage
from prototrain.system.storage import Storage
from tests.tiny import At, CountingTrainer, tiny_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Simulates another machine, by name."""

    def at(machine: str) -> Path:
        monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / machine))
        monkeypatch.setattr(platform, "node", lambda: machine)
        return tmp_path / machine

    at("first")
    monkeypatch.setattr(remote, "UPLOAD_SECONDS", 0.02)
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(remote, "LAST_SECONDS", 0.0)
    monkeypatch.setattr(lock, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(lock, "SILENT_SECONDS", 0.02)
    return at


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/run"


def train(
    where: str | Path, steps: int, *more: Callback, asynchronous: bool = True, **keywords: Any
) -> CountingTrainer:
    trainer = CountingTrainer(experiment=where)
    callbacks = [
        Summaries().every(steps=1),
        JSONWriter(),
        TensorBoardWriter(),
        ModelSaver(max_to_keep=2, asynchronous=asynchronous).every(steps=4),
        SaveOnExit(),
        *more,
    ]
    trainer.train(callbacks, max_steps=steps, **keywords)
    return trainer


class Listener(Callback):
    """Sets an event when a text with its word is logged, and keeps all texts."""

    def __init__(self, **words: str) -> None:
        self.words = words
        self.said: list[str] = []
        self.events = {name: threading.Event() for name in words}

    def setup(self) -> None:
        log = self.trainer.log

        def heard(text: str) -> None:
            self.said.append(text)
            log(text)
            for name, word in self.words.items():
                if word in text:
                    self.events[name].set()

        self.trainer.log = heard  # type: ignore[method-assign]

    def wait(self, name: str) -> None:
        assert self.events[name].wait(20)


def steps_at(url: str) -> list[int]:
    """The steps of the complete checkpoints at the URL."""
    names = Storage(url).listing()
    return sorted(int(name.split("/")[1][5:]) for name in names if name.endswith("/meta.json"))


def steps_of_rows(path: Path) -> list[int]:
    return [row["step"] for row in rows_of(path)]


def test_resume_does_not_need_the_first_weights(url: str, cache: Callable[[str], Path], tmp_path: Path) -> None:
    weights = tmp_path / "weights.npz"
    SimpleTrainer(tiny_model()).dump_weights(weights)
    for machine, steps in (("first", 2), ("second", 4)):
        cache(machine)
        trainer = SimpleTrainer(tiny_model(model__weights_load_path=str(weights)), experiment=url)
        trainer.train([SaveOnExit()], max_steps=steps)
        assert trainer.global_step == steps
        weights.unlink(missing_ok=True)


def test_run_continues_on_another_machine(
    url: str, cache: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    train(url, 10)
    said = capsys.readouterr().out
    assert steps_at(url) == [8, 10] and f"uploading what is left to {url}" in said
    assert f"checkpoints  {url}/checkpoints (newest: step-0000000010)" in said
    cache("second")
    second = train(url, 15)
    assert second.run.start_row().startswith("resumed at step 10") and second.state["total"] == 120
    assert second.experiment is not None and str(second.experiment) == url
    assert steps_of_rows(second.experiment.metrics) == list(range(1, 16))
    assert steps_at(url) == [12, 15]
    events = [name for name in Storage(url).listing() if "tfevents" in name]
    assert len(events) == 2  # the second file starts with the event that marks a resume
    # Back on the first machine, whose files are now older.
    cache("first")
    assert train(url, 17).run.start_row().startswith("resumed at step 15")
    # This machine ran last, so nothing is downloaded.
    assert train(url, 18).run.start_row().startswith("resumed at step 17")
    record = json.loads(str(Storage(url).read("run.json"), "utf-8"))
    assert [part["state"] for part in record["parts"]] == ["finished"] * 4

    train(url, 3, fresh=True)
    cache("third")
    assert train(url, 4).state["total"] == 10 and steps_at(url) == [3, 4]
    assert train(url, 2, resume=False).state["total"] == 3
    assert steps_at(url) == [2] or "checkpoints.superseded" in Remote(url).top()


def test_reading_commands(url: str, cache: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    base = url.rpartition("/")[0]
    train(url, 5)
    cache("second")
    capsys.readouterr()
    assert main(["runs", base, "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert (said["name"], said["directory"], said["state"]) == ("run", url, "finished") and said["checkpoint"] == 5
    assert main(["compare", url, url]) == 0 and "no differences" in capsys.readouterr().out
    assert main(["report", url]) == 0 and "report.html" in Remote(url).top()
    for command in ("runs", "report"):
        assert main([command, f"{base}/nothing"]) == 1 and f"there is no directory {base}" in capsys.readouterr().err
    (directory,) = find_runs(base)
    assert url_of_copy(directory) == url and read_run(directory).state == "finished"
    # Only a run downloads checkpoints, even if the other files are already here.
    assert {path.name for path in directory.glob("checkpoints/*/*")} == {"meta.json"}
    assert train(url, 6).run.start_row().startswith("resumed at step 5")


def test_parent_directory_is_not_an_experiment(
    url: str, cache: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Reading a parent URL does not disturb a run below it."""
    above = url.removesuffix("/run")
    asks = [["report", above], ["plot", above, "--scalar", "trn/total", "-o", "x.png"]]

    def ask() -> None:
        assert [main(command) for command in asks] == [1, 1]
        with pytest.raises(ExperimentError):
            Experiment(above).fetch()

    train(url, 10, At(6, ask))
    said = capsys.readouterr().err
    assert said.count(f"{above} is not an experiment") == len(asks), said
    with pytest.raises(ExperimentError, match="is not an experiment; `prototrain runs memory://"):
        train(above, 1)
    # A run that has not uploaded anything is not listed.
    (local_copy(above) / "other").mkdir()
    Storage(url).delete(list(Storage(url).listing()))
    Experiment(above).fetch()
    assert {"other", "run"} <= {path.name for path in local_copy(above).iterdir()}
    assert steps_of_rows(local_copy(url) / "metrics.jsonl") == list(range(1, 11))


def test_load_weights_from_a_url(url: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "weights.npz", a=np.arange(3))
    Storage(url).upload({"weights.npz": tmp_path / "weights.npz"})
    for _ in range(2):  # the second time from the copy
        assert read_weights(f"{url}/weights.npz")["a"].tolist() == [0, 1, 2]
    with pytest.raises(StorageError, match=r"there is no file memory://.*/other\.npz"):
        read_weights(f"{url}/other.npz")


def test_running_state_is_visible_everywhere(
    url: str, cache: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "SILENT_SECONDS", 30.0)
    found = []

    def look() -> None:
        for machine in ("second", "first"):
            cache(machine)
            found.append(read_run(url).state)

    CountingTrainer(experiment=url).train([At(2, look)], max_steps=3)
    assert found == ["running", "running"] and read_run(url).state == "finished"


class Cut(BaseException):
    """Stands for a kill of the process."""


class Cutting(Storage):
    """Is killed before an operation that changes the storage."""

    def __init__(self, url: str, operations: int) -> None:
        super().__init__(url)
        self.left = operations

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Cut

    def write(self, name: str, content: bytes, *, is_new: bool = False) -> bool:
        self._count()
        return super().write(name, content, is_new=is_new)

    def upload(self, paths: Any) -> None:
        for name, path in paths.items():
            self._count()
            super().upload({name: path})

    def delete(self, names: Any) -> None:
        for name in names:
            self._count()
            super().delete([name])


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run's directory before the first checkpoint, after it, after several, and at the end."""
    base = tmp_path_factory.mktemp("stages")
    moments = [At(step, lambda step=step: shutil.copytree(base / "run", base / str(step))) for step in (2, 5, 13)]
    train(base / "run", 14, *moments, asynchronous=False)
    return [base / "2", base / "5", base / "13", base / "run"]


def test_interrupted_uploads(stages: list[Path], tmp_path: Path) -> None:
    operations, reached = 0, set()
    while True:
        url = f"memory://{uuid.uuid4().hex}"
        mirror = Mirror(Cutting(url, operations), tmp_path / "work")
        operations += 1
        try:
            # A run uploads its record before the first step, which says that nothing is saved.
            mirror._storage.write("run.json", (stages[0] / "run.json").read_bytes())
            for stage in stages:
                shutil.rmtree(tmp_path / "work", ignore_errors=True)
                shutil.copytree(stage, tmp_path / "work")
                while mirror.upload():
                    pass
        except Cut:
            pass
        else:
            break
        said: list[str] = []
        Storage(url).delete(Mirror(Storage(url), local_copy(url)).download(whole=True))
        found = Experiment(url)
        steps = checkpoint_steps(found.checkpoints)
        newest = Checkpoints(found.checkpoints, said.append).newest()
        assert not any("WARNING" in line for line in said)
        if newest is None:
            assert not has_saved(found.record)
        else:
            assert newest.step == max(steps)
            assert steps_of_rows(found.metrics)[: newest.step] == list(range(1, newest.step + 1))
        reached.add(None if newest is None else newest.step)
    assert reached == {None, 4, 12, 14} and operations > 20


class Pruning(Storage):
    """A slow storage: training deletes the checkpoint whose upload has begun."""

    def __init__(self, url: str, directory: Path) -> None:
        super().__init__(url)
        self._checkpoints = directory / "checkpoints"

    def upload(self, paths: Any) -> None:
        if any("/step-" in name for name in paths):
            shutil.rmtree(self._checkpoints, ignore_errors=True)
        super().upload(paths)


def test_checkpoint_deleted_during_its_upload(stages: list[Path], url: str, tmp_path: Path) -> None:
    shutil.copytree(stages[1], tmp_path / "work")
    Mirror(Pruning(url, tmp_path / "work"), tmp_path / "work").upload()
    assert not (tmp_path / "work" / "checkpoints").exists() and steps_at(url) == [4]
    Mirror(Storage(url), local_copy(url)).download(whole=True)
    newest = Checkpoints(Experiment(url).checkpoints, run_id=Experiment(url).run_id).newest()
    assert newest is not None and newest.step == 4


def test_unsafe_names(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Storage, "listing", lambda self, folder="": {"meta.json": "", "../x": ""})
    with pytest.raises(ExperimentError, match="cannot be a file; no run writes that"):
        Experiment(url).fetch(whole=True)


def test_failing_storage(url: str, cache: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec.implementations.memory as memory

    broken, listener = threading.Event(), Listener(warned="WARNING", works="work again")
    for name in ("pipe_file", "put_file"):
        original = getattr(memory.MemoryFileSystem, name)

        def write(*arguments: Any, original: Any = original, **keywords: Any) -> Any:
            if broken.is_set():
                raise OSError(5, "the server is on fire")
            return original(*arguments, **keywords)

        monkeypatch.setattr(memory.MemoryFileSystem, name, write)

    def fail() -> None:
        broken.set()
        with open(local_copy(url) / "train.log", "a") as file:  # so that there is something to upload
            file.write("a line\n")
        listener.wait("warned")
        broken.clear()
        listener.wait("works")

    train(url, 6, listener, At(2, fail))
    assert sum("WARNING" in line for line in listener.said) == 1
    assert any(f"cannot write to {url}: the server is on fire; training continues" in line for line in listener.said)

    with pytest.raises(StorageError, match=r"the whole run is in .*/first/mirrors/memory/") as failure:
        train(url, 9, At(8, broken.set))
    assert "the server is on fire" in str(failure.value) and steps_at(url)[-1] < 9
    broken.clear()
    # On this machine the same command has all files; on another one, the uploaded ones.
    assert train(url, 9).run.start_row().startswith("resumed at step 9") and steps_at(url)[-1] == 9
    with pytest.raises(StorageError):
        train(url, 11, At(10, broken.set))
    broken.clear()
    cache("second")
    assert train(url, 12).run.start_row().startswith("resumed at step 9")
    cache("first")
    with pytest.raises(ExperimentError, match=r"step 11 in .* was not uploaded before; delete or move"):
        train(url, 13)
    shutil.rmtree(local_copy(url))
    assert train(url, 13).run.start_row().startswith("resumed at step 12")


def test_hanging_storage(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training continues, the WARNING comes at once, and the end is an error that names the local copy."""
    import fsspec.implementations.memory as memory

    hangs, go_on, listener = threading.Event(), threading.Event(), Listener(warned="no answer for")
    cat_file = memory.MemoryFileSystem.cat_file

    def hang(*arguments: Any, **keywords: Any) -> Any:
        if hangs.is_set():
            go_on.wait(20)
        return cat_file(*arguments, **keywords)

    def begin() -> None:
        hangs.set()
        listener.wait("warned")

    monkeypatch.setattr(memory.MemoryFileSystem, "cat_file", hang)
    monkeypatch.setattr(storage, "ANSWER_SECONDS", 0.1)
    trainer = CountingTrainer(experiment=url)
    with pytest.raises(StorageError, match=r"no answer for .* the whole run is in"):
        trainer.train([listener, At(2, begin), SaveOnExit()], max_steps=6)
    go_on.set()
    assert trainer.global_step == 6 and checkpoint_steps(local_copy(url) / "checkpoints")[-1] == 6


def test_run_ends_if_its_lease_is_taken_over(url: str, cache: Callable[[str], Path]) -> None:
    def take_over() -> None:
        cache("second")
        Storage(url).delete([lock.LEASE])
        lock.Lease(Storage(url)).take("another copy", print)
        trainer.run._looked_at = -1e9
        remote_one = trainer.experiment.remote
        remote_one.wake()
        assert any(thread.join(20) is None for thread in remote_one._threads[1:])

    trainer = CountingTrainer(experiment=url)
    with pytest.raises(ExperimentError, match="has taken over"):
        trainer.train([At(2, take_over), ModelSaver().every(steps=1)], max_steps=30)
    assert trainer.global_step < 30
