"""Checkpoints and their directory: writing, verification, deletion and their order."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.checkpoint.store import META, Checkpoints, Snapshot, checksum, prefix_of, verify
from prototrain.errors import CheckpointError, ExperimentError
from prototrain.system import files


class Note:
    """A part with its own file."""

    def __init__(self, text: str) -> None:
        self.text = text

    def write(self, prefix: str) -> dict[str, int]:
        Path(f"{prefix}.txt").write_text(self.text)
        return {"length": len(self.text)}

    def read(self, prefix: str, meta: dict[str, int]) -> None:
        self.text = Path(f"{prefix}.txt").read_text()
        assert meta == {"length": len(self.text)}


def snapshot(step: int, run_id: str | None = "mine", **saveables: Any) -> Snapshot:
    variables = {"w/kernel": tf.Variable(np.full((2, 3), step, np.float32)), "count": np.int64(step)}
    return Snapshot(step, variables, saveables, {"run_id": run_id})


def rewrite_meta(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the content of a meta.json, with a correct checksum."""
    meta = json.loads((path / META).read_text())["meta"]
    change(meta)
    (path / META).write_text(json.dumps({"sha256": checksum(meta), "meta": meta}))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


TENSORS = {
    "scalar": tf.constant(1.5, tf.float64),
    "empty": tf.zeros([0, 3]),
    "text": tf.constant([b"a", b"\0bc"]),
    "half": tf.cast(tf.range(7), tf.bfloat16),
    **{f"large/{number}": tf.random.stateless_normal([40, 10], [number, 0]) for number in range(5)},
}


def test_saved_checkpoint_is_read_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.newest() is None and checkpoints.steps() == []
    path = checkpoints.start(Snapshot(7, dict(TENSORS), {"note": Note("hello")}))()
    found, note = checkpoints.newest(), Note("")
    assert found is not None and found.step == 7
    assert found.path == path == tmp_path / "checkpoints" / "step-0000000007"
    note.read(prefix_of(path, "note"), found.meta["parts"]["note"])
    assert note.text == "hello"
    read = found.variables()
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        np.testing.assert_array_equal(read[name], tensor)
        np.testing.assert_array_equal(tf.train.load_variable(str(path / "model"), name), tensor)  # as others read it


@pytest.mark.parametrize("name", ["model.index", "meta", "", "..", "/etc/x", "%"])
def test_saveables_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = Checkpoints(tmp_path / "checkpoints").start(snapshot(1, **{name: Note("x")}))()
    found = verify(path)
    assert sorted(found.variables()) == ["count", "w/kernel"]
    assert Path(prefix_of(found.path, name)).parent == path
    assert names(tmp_path) == ["checkpoints"] and len(names(path)) == 4


def break_data(path: Path) -> None:
    file = path / "model.data-00000-of-00001"
    file.write_bytes(file.read_bytes()[:-1])


def make_empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def make_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("no directory")


def make_dangling(path: Path) -> None:
    shutil.rmtree(path)
    path.symlink_to("nowhere")


def test_interrupted_replacement_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.start(snapshot(1))()
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name.startswith(".tmp-"):
            raise OSError(errno.EIO, "no luck")
        return rename(self, target)

    changed = snapshot(1)
    changed.meta["more"] = 1
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(CheckpointError, match="no luck"):
        checkpoints.start(changed)()
    monkeypatch.undo()
    assert names(tmp_path) == [f".replaced-{path.name}"]  # as a kill leaves it
    checkpoints.recover()
    assert names(tmp_path) == [path.name] and "more" not in verify(path).meta
    checkpoints.start(changed)()
    assert names(tmp_path) == [path.name] and verify(path).meta["more"] == 1


@pytest.mark.parametrize("damage", [break_data, make_empty, make_file, make_dangling])
def test_damaged_checkpoint_of_a_step_is_replaced(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.start(snapshot(1))()
    damage(path)
    assert checkpoints.start(snapshot(1))() == path
    assert verify(path).step == 1 and names(tmp_path) == [path.name]


def test_remains_of_a_killed_save_are_deleted(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.start(snapshot(1))()
    mine = os.getpid()
    for name in (".tmp-step-0000000002-99", f".tmp-step-0000000002-{mine}", f".old-step-0000000001-{mine}"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.index").write_text("half")
    (tmp_path / ".tmp-min-vld-loss.json-77").write_text("{")
    checkpoints.start(snapshot(2))()  # from a process with the same ID
    checkpoints.remove(1)
    checkpoints.delete_leftovers()
    assert names(tmp_path) == ["step-0000000002"]


def test_failed_save_leaves_nothing(tmp_path: Path) -> None:
    class Breaks(Note):
        def write(self, prefix: str) -> dict[str, int]:
            super().write(prefix)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Checkpoints(tmp_path).start(snapshot(1, note=Breaks("x")))()
    with pytest.raises(TypeError):
        Checkpoints(tmp_path).start(Snapshot(1, meta={"no": object()}))()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda meta: meta.update(format=1), "has format 1, and this version of prototrain reads 2"),
        (lambda meta: meta.pop("format"), "meta.json is not readable"),
        (lambda meta: meta.update(step=2), "its content is of step 2"),
        (lambda meta: meta.update(step=-1), "meta.json is not readable"),
        (lambda meta: meta.update(files=[]), "meta.json is not readable"),
        (lambda meta: meta["files"].update({"gone": {"size": 0}}), "No such file or directory"),
        (lambda meta: meta.update(run_id="another"), r"belongs to another run \(another\); .* model.weights_load_path"),
    ],
)
def test_invalid_meta_json_values(tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str) -> None:
    path = Checkpoints(tmp_path).start(snapshot(1))()
    rewrite_meta(path, change)
    with pytest.raises(ExperimentError if "format" in said else CheckpointError, match=said):
        verify(path, run_id="mine")


def test_no_run_id_accepts_all_checkpoints(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).start(snapshot(1, run_id=None))()
    assert verify(path, run_id="mine").step == 1
    Checkpoints(tmp_path).start(snapshot(2))()
    assert verify(Checkpoints(tmp_path).path(2)).step == 2


def test_files_are_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file, then the directory, then the rename, then the directory above it."""
    order: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noting_fsync(descriptor: int) -> None:
        order.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def noting_rename(source: Any, target: Any, **more: Any) -> None:
        if Path(target).name.startswith("step-"):
            order.append(f"rename to {Path(target).name}")
        rename(source, target, **more)

    monkeypatch.setattr(files.os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "rename", noting_rename)
    Checkpoints(tmp_path / "checkpoints").start(snapshot(1))()
    temporary = f".tmp-step-0000000001-{os.getpid()}"
    assert [order[0], *sorted(order[1:3]), *order[3:]] == [
        f"fsync {tmp_path.name}",
        "fsync model.data-00000-of-00001",
        "fsync model.index",
        "fsync meta.json",
        f"fsync {temporary}",
        "rename to step-0000000001",
        "fsync checkpoints",
    ]


_EVENTS = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.listdir", "os.scandir", "shutil.rmtree")


def plain_snapshot(step: int) -> Snapshot:
    """A snapshot that a forked process can write without TensorFlow."""
    return Snapshot(step, saveables={"note": Note("x" * step), "second": Note("y")}, meta={"run_id": "mine"})


def test_kill_between_any_two_calls_leaves_a_valid_checkpoint(tmp_path: Path) -> None:
    """Each child process is killed at a different file operation."""
    reached = 0
    for at in range(1, 200):
        directory = tmp_path / str(at) / "checkpoints"
        code = _kill_child(directory, at)
        checkpoints = Checkpoints(directory, lambda line: None, run_id="mine")
        checkpoints.delete_leftovers()
        newest = checkpoints.newest()
        assert newest is not None, at
        assert not [name for name in names(directory) if name.startswith((".tmp-", ".old-"))]
        if code == 0:
            assert newest.step == 3 and checkpoints.steps() == [3]
            break
        reached = at
    assert reached > 20


def _kill_child(directory: Path, at: int) -> int:
    """Save, fall back and prune in a child that is killed at its `at`-th file operation; returns 0 if it finished."""
    child = os.fork()
    if child == 0:
        seen = 0

        def kill(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if armed and event in _EVENTS and str(directory) in str(arguments):
                seen += 1
                if seen == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        armed = False
        sys.addaudithook(kill)
        checkpoints = Checkpoints(directory, lambda line: None, run_id="mine")
        for step in (1, 2):
            checkpoints.start(plain_snapshot(step))()
        (checkpoints.path(2) / "note.txt").write_bytes(b"")  # saving step 2 again moves it aside first
        armed = True
        checkpoints.newest()
        for step in (2, 3):
            checkpoints.start(plain_snapshot(step))()
        checkpoints.prune(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]
