"""Resolution of a reader's paths, patterns and URLs to local files."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from prototrain.system.files import PathLike, local_path, url_of
from prototrain.system.storage import Storage, downloaded_all


def several(paths: PathLike | Iterable[PathLike]) -> list[PathLike]:
    """Return one or several paths as a list."""
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def matching_files(pattern: PathLike) -> list[str]:
    """Return the files that match a glob pattern, sorted by name.

    A local file with exactly this name, and existing parent directories such as `lr=[0.1]`, also at a URL, are taken
    literally. In a URL, `*` also matches slashes.
    """
    url = url_of(pattern)
    if url is None:
        path = local_path(pattern)
        if path.is_file():
            return [str(path)]
        base = next((parent for parent in path.parents if parent.is_dir() or parent == parent.parent), path)
        found = Path(glob.escape(str(base)), path.relative_to(base))
        return sorted(file for file in glob.glob(str(found), recursive=True) if os.path.isfile(file))
    above, _, name = url.rpartition("/")
    while set("*?[") & set(above) and not Storage(above).listing():
        above, _, folder = above.rpartition("/")
        name = f"{folder}/{name}"
    matches = {other: mark for other, mark in sorted(Storage(above).listing().items()) if fnmatchcase(other, name)}
    return [str(path) for path in downloaded_all(above, matches)]


def display_path(path: PathLike) -> str:
    """Return a path for messages: relative if it is below the current directory."""
    if (url := url_of(path)) is not None:
        return url
    absolute, here = local_path(path).absolute(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
