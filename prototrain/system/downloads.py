"""Files at URLs, downloaded once and kept for the next time, as long as they are the same there."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from prototrain.errors import StorageError
from prototrain.system.storage import Found, Storage
from prototrain.system.urls import cache_home
from prototrain.system.waiting import announcing

_AT_ONCE = 64  # files; those that have come are there for the next time, if a later one fails


def downloaded(url: str) -> Path:
    """A file at a URL as a file of this machine.

    Raises:
        StorageError: there is none, or the storage cannot be reached.
    """
    base, _, name = url.rpartition("/")
    storage = Storage(base)
    found = storage.find(name)
    if found is None:
        raise StorageError(f"there is no file {url}")
    return _downloaded(storage, {name: found})[0]


def downloaded_all(url: str, files: dict[str, Found]) -> list[Path]:
    """Files below a URL as files of this machine, several at the same time where the storage allows it.

    Args:
        url: what the names are relative to.
        files: as its `Storage` lists them.

    Raises:
        StorageError: the storage cannot be reached.
    """
    return _downloaded(Storage(url), files)


def _downloaded(storage: Storage, files: dict[str, Found]) -> list[Path]:
    home = cache_home() / "files"
    paths = {name: _path(home, f"{storage.url}/{name}", found) for name, found in files.items()}
    lacking = [name for name, path in paths.items() if not files[name].mark or not path.is_file()]
    what = f"{storage.url}/{lacking[0]}" if len(lacking) == 1 else f"{len(lacking)} files of {storage.url}"
    temporary = home / f".tmp-{paths[lacking[0]].parent.name}-{os.getpid()}" if lacking else home
    try:
        with announcing(f"downloading {what}"):
            for start in range(0, len(lacking), _AT_ONCE):
                _download(storage, {name: paths[name] for name in lacking[start : start + _AT_ONCE]}, temporary)
    except OSError as error:
        raise StorageError(f"cannot keep a copy of {what} in {home}: {error.strerror}") from error
    finally:
        if lacking:
            shutil.rmtree(temporary, ignore_errors=True)
    return list(paths.values())


def _download(storage: Storage, paths: dict[str, Path], temporary: Path) -> None:
    parts = {name: temporary / path.parent.name / path.name for name, path in paths.items()}
    storage.download(parts)
    for name, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(parts[name], path)


def _path(home: Path, url: str, found: Found) -> Path:
    digest = hashlib.sha256(f"{url} {found.size} {found.mark}".encode()).hexdigest()[:32]
    return home / digest / url.rpartition("/")[2]
