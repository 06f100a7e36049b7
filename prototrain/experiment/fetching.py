"""What lies at URLs, for those that read it: experiments, their checkpoints, and files with weights."""

from __future__ import annotations

import re
from pathlib import Path

from prototrain.experiment.mirror import local_copy
from prototrain.experiment.remote import Remote
from prototrain.system.downloads import downloaded
from prototrain.system.storage import Storage
from prototrain.system.urls import PathLike, local_path, url_of

_CHECKPOINT = re.compile(r"(.+)(/checkpoints/[^/]+(?:/[^/]+)?)")
_FILES = (".h5", ".hdf5", ".keras", ".npy", ".npz")


def fetched(path: PathLike) -> Path:
    """What a path means on this machine: of a URL the local copy, which is brought up to date.

    Args:
        path: of an experiment, a checkpoint in it, or a file with weights.

    Raises:
        StorageError: the storage cannot be reached, or has no such file.
    """
    url = url_of(path)
    if url is None:
        return local_path(path)
    if url.endswith(_FILES):
        return downloaded(url)
    inside = _CHECKPOINT.fullmatch(url)
    remote = Remote(inside[1] if inside else url)
    remote.fetch(whole=True)
    return remote.directory / inside[2].lstrip("/") if inside else remote.directory


def experiments_below(url: str) -> list[Path]:
    """The directories on this machine that stand for the experiments at and below a URL, in the order of their names.

    Raises:
        StorageError: the storage cannot be reached.
    """
    parts = (name.rpartition("/") for name in Storage(url).listing())
    found: list[str] = []
    for folder in sorted(folder for folder, _, name in parts if name == "environment.json"):
        if not any(folder == one or not one or folder.startswith(f"{one}/") for one in found):
            found.append(folder)
    return [local_copy(url) / folder if folder else local_copy(url) for folder in found]
