"""Single files at URLs, downloaded once and kept for the next time, as long as they are the same there."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from prototrain.errors import StorageError
from prototrain.system.storage import Storage
from prototrain.system.urls import cache_home
from prototrain.system.waiting import announcing


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
    digest = hashlib.sha256(f"{url} {found.size} {found.mark}".encode()).hexdigest()[:32]
    path = cache_home() / "files" / digest / name
    if not found.mark or not path.is_file():
        temporary = path.parent.with_name(f".tmp-{digest}-{os.getpid()}")
        try:
            with announcing(f"downloading {url}"):
                storage.download({name: temporary / name})
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary / name, path)
        except OSError as error:
            raise StorageError(f"cannot keep a copy of {url} in {path.parent}: {error.strerror}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return path
