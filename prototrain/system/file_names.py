"""Names of files without the directory that they lie in: data may be moved, or lie elsewhere on another machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from prototrain.system.graphs import short_digest
from prototrain.system.urls import cache_home

LOOKED_AT = 20_000
"""So many of the names in a list are looked at on the disk: on a network it takes long."""


@dataclass(frozen=True)
class FileNames:
    """What lists of names of files say.

    Attributes:
        directory: that all of the files lie in, directly or further below; that of files that were downloaded is the
            cache, below which other content has another name.
        below: a digest of their names below it, in this order.
        sizes: a digest of theirs.
    """

    directory: str
    below: str
    sizes: str


def file_sizes(names: Sequence[str | bytes]) -> list[int] | None:
    """The sizes of files, in bytes, as far as they are looked at; None if there is no name, or not of a file."""
    sizes = []
    for name in names[:LOOKED_AT]:
        try:
            status = os.stat(name)
        except (OSError, ValueError):  # a zero byte
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        sizes.append(status.st_size)
    return sizes or None


def file_names(lists: Sequence[Sequence[str | bytes]], sizes: Sequence[Sequence[int]]) -> FileNames:
    """What lists of names of files say.

    Args:
        lists: of the names.
        sizes: of the files, for each list.
    """
    paths = [[os.fsdecode(name) for name in names] for names in lists]
    directory = _common_directory({os.path.dirname(path) for group in paths for path in group})
    below = [[os.path.relpath(path, directory) if directory else path for path in group] for group in paths]
    return FileNames(directory, _digest(below), _digest(sizes))


def _common_directory(directories: set[str]) -> str:
    """The longest one that all are in; nothing if there is none, such as where only some begin at the root."""
    try:
        common = os.path.commonpath(directories)
    except ValueError:
        return ""
    cache = str(cache_home())
    return cache if os.path.join(common, "").startswith(os.path.join(cache, "")) else common


def _digest(found: object) -> str:
    return short_digest(repr(found).encode(errors="surrogateescape"))
