"""Paths that are URLs, such as s3://bucket/folder. fsspec reads and writes them; it is imported only for a URL."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from prototrain.errors import StorageError

PathLike = str | os.PathLike[str]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)  # `Path` leaves one of the slashes; C:/x is none


def url_of(path: PathLike) -> str | None:
    """A path as a URL, ``scheme://rest`` without a slash at the end; None for a local path.

    Raises:
        StorageError: the scheme is unknown, or the library for it is not installed.
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
    """A path that is no URL, or a URL of the local disk (``file:///...``), as a path."""
    found = _URL.fullmatch(os.fspath(path))
    return Path(path) if found is None else Path("/", found[2])


def joined(base: PathLike, name: str) -> PathLike:
    """The path of `name` below a directory, which may be a URL."""
    if _URL.fullmatch(os.fspath(base)) is None or not name:
        return Path(base) / name
    return f"{os.fspath(base).rstrip('/')}/{name}"


def cache_home() -> Path:
    """The directory of local copies: ``PROTOTRAIN_CACHE``, else below the user's cache directory."""
    if home := os.environ.get("PROTOTRAIN_CACHE"):
        return Path(home).absolute()
    home = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    # A user without an entry in the system's database has no home, as in some containers.
    return Path(tempfile.gettempdir() if home.startswith("~") else home).absolute() / "prototrain"
