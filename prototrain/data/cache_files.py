"""The files of `cache(filename)`: TensorFlow locks them while they are written, and a killed run leaves the lock."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from prototrain.errors import DataError

try:
    import fcntl
except ImportError:  # not a system of that family
    fcntl = None  # type: ignore[assignment]

_owned: dict[str, IO[str]] = {}  # given back by the operating system when the process ends, however it ends


def unfinished(names: Iterable[str]) -> list[str]:
    """Those of the caches that are still to be written."""
    return [name for name in names if not Path(f"{name}.index").exists()]


def take_caches(names: Iterable[str], announce: Callable[[str], None]) -> None:
    """Take caches that are to be written for this process, and remove what a run that was killed has left of them.

    Args:
        names: as they were given to `cache`.
        announce: called with a line about each that was left.

    Raises:
        DataError: another process writes one, or nobody can tell who has left its lock.
    """
    for name in names:
        if name not in _owned and fcntl is not None:
            _take(name, announce)


def _take(name: str, announce: Callable[[str], None]) -> None:
    try:
        file = open(f"{name}.owner", "a+", encoding="utf-8")  # noqa: SIM115 - held while the process lasts
    except OSError:
        return  # TensorFlow cannot write there either, and says so
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise DataError(
            f"the cache {name} is being written by {holder}; wait for it, or give it another name"
        ) from None
    _owned[name] = file
    file.seek(0)
    holder, locks = file.read().strip(), glob.glob(f"{glob.escape(name)}_*.lockfile")
    if locks and not holder:
        _owned.pop(name).close()
        Path(f"{name}.owner").unlink(missing_ok=True)
        raise DataError(
            f"the cache {name} is locked by a program that writes it or was killed while it did; "
            f"if none is running, delete {locks[0]}"
        )
    if locks:
        for path in glob.glob(f"{glob.escape(name)}_*"):
            Path(path).unlink(missing_ok=True)
        announce(f"removed the unfinished cache {name} of {holder}, which ended while it wrote that")
    file.truncate(0)
    file.write(f"process {os.getpid()}\n")
    file.flush()
