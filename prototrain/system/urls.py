"""Paths that are URLs, such as s3://bucket/folder. fsspec accesses them and is only imported when needed."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from prototrain.errors import StorageError

PathLike = str | os.PathLike[str]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)  # `Path` drops one of the slashes; C:/x is not a URL


def url_of(path: PathLike) -> str | None:
    """Return a path as a URL, ``scheme://rest`` without a slash at the end, or None for a local path.

    Raises:
        StorageError: the URL is invalid, its scheme is unknown, or the library for it is not installed.
    """
    text, found = os.fspath(path), _URL.fullmatch(os.fspath(path))
    if found is None and "://" in text:
        raise StorageError(f"{text!r} is no path and no URL; give one such as s3://bucket/folder")
    if found is None or found[1].lower() in ("file", "local"):
        return None
    scheme, parts = found[1].lower(), [part for part in found[2].split("/") if part]
    url = f"{scheme}://{'/'.join(parts)}"
    if not parts or {".", ".."} & set(parts) or "\0" in url:
        raise StorageError(f"{text!r}: give a URL such as {scheme}://bucket/folder, without . or .. in it")
    try:
        import fsspec
    except ImportError as error:
        raise StorageError(f"{url} needs fsspec, which is not installed: pip install 'prototrain[cloud]'") from error
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:  # such as "Install s3fs to access S3"
        raise StorageError(f"cannot use {url}: {str(error).partition(chr(10))[0]}") from error
    except ValueError as error:
        raise StorageError(f"unknown scheme in {url}; fsspec knows s3, gs, az, memory and others") from error
    return url


def local_path(path: PathLike) -> Path:
    """Return a local path, or a URL of the local disk (``file:///...``), as a `Path`."""
    found = _URL.fullmatch(os.fspath(path))
    return Path(path) if found is None else Path("/", found[2])


def joined(base: PathLike, name: str) -> PathLike:
    """Return the path of `name` in a directory, which may be a URL."""
    if _URL.fullmatch(os.fspath(base)) is None or not name:
        return Path(base) / name
    return f"{os.fspath(base).rstrip('/')}/{name}"


def cache_home() -> Path:
    """Return the directory of local copies: ``PROTOTRAIN_CACHE``, or ``prototrain`` in the user's cache directory."""
    if home := os.environ.get("PROTOTRAIN_CACHE"):
        return Path(home).absolute()
    home = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    # In some containers the user has no home directory.
    return Path(tempfile.gettempdir() if home.startswith("~") else home).absolute() / "prototrain"
