"""Resolution of a reader's paths, patterns and URLs to local files."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from prototrain.errors import DataError
from prototrain.system.files import local_path, url_of
from prototrain.system.storage import Storage, downloaded, downloaded_all

PathLike: TypeAlias = str | os.PathLike[str]


def several(paths: PathLike | Iterable[PathLike]) -> list[PathLike]:
    """Return one or several paths as a list."""
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def local_files(paths: PathLike | Iterable[PathLike]) -> list[tuple[str, str]]:
    """Return (name for messages, local path) of each file, in this order; downloads files at URLs.

    Raises:
        DataError: `paths` is empty.
    """
    urls = [(path, url_of(path)) for path in several(paths)]
    found = [(shown(path), str(local_path(path) if url is None else downloaded(url))) for path, url in urls]
    if not found:
        raise DataError("there are no files to read: name one at least")
    return found


def matching_files(pattern: PathLike) -> list[str]:
    """Return the files that match a glob pattern, sorted by name.

    The pattern may be a URL; there, `*` also matches slashes. Names that exist are taken literally: a file with exactly
    this name, and parent directories such as `lr=[0.1]`.
    """
    url = url_of(pattern)
    if url is None:
        path = local_path(pattern)
        if path.is_file():
            return [str(path)]
        base = next(parent for parent in path.parents if parent.is_dir() or parent == parent.parent)
        found = Path(glob.escape(str(base)), path.relative_to(base))
        return sorted(file for file in glob.glob(str(found), recursive=True) if os.path.isfile(file))
    base_url, _, name = url.rpartition("/")
    if Storage(base_url).find(name) is None:
        while set("*?[") & set(base_url) and not Storage(base_url).listing():
            base_url, _, above = base_url.rpartition("/")
            name = f"{above}/{name}"
    else:
        name = glob.escape(name)
    matches = {other: info for other, info in sorted(Storage(base_url).listing().items()) if fnmatchcase(other, name)}
    return [str(path) for path in downloaded_all(base_url, matches)]


def unreadable(path: PathLike, error: OSError) -> DataError:
    """Return the error for a file that cannot be read."""
    return DataError(f"{shown(path)}: cannot be read ({error.strerror})")


def shown(path: PathLike) -> str:
    """Return a path for messages: relative if it is below the current directory."""
    if (url := url_of(path)) is not None:
        return url
    absolute, here = local_path(path).absolute(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
