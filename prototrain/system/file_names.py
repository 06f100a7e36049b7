"""Names of files without the directory that they lie in: data may be moved, or lie elsewhere on another machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

from prototrain.system.graphs import short_digest

_LOOKED_AT = 20_000  # each is asked for its size, which takes long on a network disk


class FileNames(NamedTuple):
    """What names of files say.

    Attributes:
        directory: that all of the files lie in, directly or further below, as it stands in their names.
        below: a digest of their names below it, in this order.
        sizes: theirs, in bytes.
    """

    directory: str
    below: str
    sizes: list[int]


def file_names(texts: Sequence[str | bytes]) -> FileNames | None:
    """What some texts say as names of files; None if one of them is none, or if they are very many."""
    if not 0 < len(texts) <= _LOOKED_AT:
        return None
    paths = []
    sizes = []
    for text in texts:
        try:
            status = os.stat(text)
        except (OSError, ValueError):  # a zero byte
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        paths.append(os.fsdecode(text))
        sizes.append(status.st_size)
    try:
        directory = os.path.commonpath([os.path.dirname(path) for path in paths])
    except ValueError:  # some names begin at the root, and others do not
        return None
    below = "\0".join(os.path.relpath(path, directory) for path in paths)
    return FileNames(directory, short_digest(below.encode(errors="surrogateescape")), sizes)
