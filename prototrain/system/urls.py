"""Paths that are URLs, such as s3://bucket/folder: what they are, and the library that reads and writes them.

That is fsspec, with a package for each kind of storage. Both are imported only when a URL is given.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

from prototrain.errors import StorageError

PathLike = str | os.PathLike[str]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)  # `Path` leaves one of the slashes; C:/x is none
_LOCAL = ("file", "local")
_PACKAGES: Final = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "adl", "az"), "adlfs"),
}


def url_of(path: PathLike) -> str | None:
    """What a path is as a URL, ``scheme://rest`` without a slash at the end; None for a local one.

    Raises:
        StorageError: nobody knows its scheme, or the library for it is missing.
    """
    text = os.fspath(path)
    found = _URL.fullmatch(text)
    if found is None and "://" in text:
        raise StorageError(f"{text!r} is no path and no URL; give one such as s3://bucket/folder")
    if found is None or found[1].lower() in _LOCAL:
        return None
    scheme, parts = found[1].lower(), [part for part in found[2].split("/") if part]
    url = f"{scheme}://{'/'.join(parts)}"
    if not parts:
        raise StorageError(f"{text!r} names no bucket and no folder; give a URL such as {scheme}://bucket/folder")
    if {".", ".."} & set(parts) or "\0" in url:
        raise StorageError(f"{text!r}: a URL cannot have . or .. in it")
    _class_for(scheme, url)
    return url


def local_path(path: PathLike) -> Path:
    """A path that is no URL, or one of the local disk (``file:///...``), as a path."""
    found = _URL.fullmatch(os.fspath(path))
    return Path(path) if found is None else Path("/", found[2])


def joined(base: PathLike, name: str) -> PathLike:
    """The path of what is called `name` below a directory, which may be a URL."""
    if _URL.fullmatch(os.fspath(base)) is None or not name:
        return Path(base) / name
    return f"{os.fspath(base).rstrip('/')}/{name}"


def cache_home() -> Path:
    """Where copies of what lies at URLs are kept: ``PROTOTRAIN_CACHE``, else below the user's cache directory."""
    if home := os.environ.get("PROTOTRAIN_CACHE"):
        return Path(home).absolute()
    home = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    # A user whom the system does not know has no home, as in some containers.
    return Path(tempfile.gettempdir() if home.startswith("~") else home).absolute() / "prototrain"


def _class_for(scheme: str, url: str) -> Any:
    """fsspec's class for a scheme."""
    package = _PACKAGES.get(scheme)
    more = "" if package in (None, "s3fs") else f" {package}"
    try:
        import fsspec
    except ImportError as error:
        raise StorageError(
            f"{url} is read and written by fsspec, which is not installed: pip install 'prototrain[cloud]'{more}"
        ) from error
    try:
        return fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        install = f"which is not installed: pip install {package}" if package else _first_line(error)
        raise StorageError(f"{url} needs {package or 'a package'}, {install}") from error
    except ValueError as error:
        raise StorageError(
            f"nobody knows the scheme of {url}: known are s3, gs, az, memory, file and what else fsspec knows"
        ) from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
