"""The lock of an experiment's directory."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from prototrain.errors import ExperimentError
from prototrain.experiment.lock import LOCK, DirectoryLock, is_locked


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
    first.give_back()
    assert not is_locked(path)
    second.check_free()
    assert second.take() is None
    second.give_back()
    path.write_text("process 1 on there\n")
    assert second.take() == "took over the lock of process 1 on there, which ended without giving it back"
    second.give_back()


def test_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = DirectoryLock(tmp_path)
    assert str(lock.take()).startswith(f"WARNING: cannot lock {tmp_path} (No locks available)")
    assert not is_locked(tmp_path / LOCK)
    lock.check_free()
    lock.give_back()
