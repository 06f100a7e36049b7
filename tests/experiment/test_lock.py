"""The lock of an experiment's directory."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from pathlib import Path

import pytest

from prototrain.errors import ExperimentError
from prototrain.experiment.lock import LOCK, DirectoryLock, is_locked


def test_one_has_it_at_a_time(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path / "run"), DirectoryLock(tmp_path / "run")
    path = tmp_path / "run" / LOCK
    assert not is_locked(path)
    assert first.take() is None and first.take() is None
    assert is_locked(path)
    with pytest.raises(ExperimentError, match=f"run is in use by another run \\(process {os.getpid()} on "):
        second.take()
    with pytest.raises(ExperimentError, match="in use"):
        second.check_free()
    first.give_back()
    assert not is_locked(path)
    second.check_free()
    assert second.take() is None
    second.give_back()


def test_who_has_died_with_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / LOCK
    path.write_text("process 1 on there\n")
    lock = DirectoryLock(tmp_path)
    assert lock.take() == "took over the lock of process 1 on there, which ended without giving it back"
    lock.give_back()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / LOCK
    lock = DirectoryLock(tmp_path)
    assert str(lock.take()).startswith(f"WARNING: no lock on {tmp_path} can be had (No locks available): see to it")
    assert not is_locked(path)  # it is this process's own
    lock.give_back()
    for holder, lives in ((os.getppid(), True), (2**22 + 1, False)):  # the largest number of a process is below that
        path.write_text(f"process {holder} on {platform.node()}\n0\n")
        assert is_locked(path) == lives
    path.write_text(f"process {os.getppid()} on {platform.node()}\n0\n")
    with pytest.raises(ExperimentError, match=f"in use by another run \\(process {os.getppid()} on "):
        lock.take()
