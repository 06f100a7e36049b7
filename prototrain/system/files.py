"""Atomic writes, and paths that are URLs."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import compress
from pathlib import Path

from prototrain.errors import ExperimentError, StorageError

PathLike = str | os.PathLike[str]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)  # `Path` drops one of the slashes; C:/x is not a URL


def short_digest(content: bytes) -> str:
    """Return the first eight hexadecimal digits of a SHA-256 digest."""
    return hashlib.sha256(content).hexdigest()[:8]


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically: readers see the old file or the new one, never a part, even after a power failure.

    Text is written as UTF-8.

    Raises:
        OSError: the file cannot be written; the old one is untouched and no temporary file is left.
    """
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def python_files(source: Path) -> list[Path]:
    """Return a Python file as a list, or the Python files of a package, sorted, without those of experiments in it."""
    if source.is_file():
        return [source]
    found: list[Path] = []
    for folder, names, files in os.walk(source):
        is_code = [not name.startswith(".") and not Path(folder, name, "environment.json").exists() for name in names]
        names[:] = compress(names, is_code)
        found += [Path(folder, name) for name in files if name.endswith(".py")]
    return sorted(found)


def sync(path: Path) -> None:
    """Make a file's content, or the renames and deletions inside a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def appearing(final: Path) -> Iterator[Path]:
    """Context manager that yields a temporary path, and renames it to `final` if nothing fails.

    Raises:
        ExperimentError: the file or directory cannot be written.
    """
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=final.parent, prefix=".tmp-") as scratch:
            temporary = Path(scratch, final.name)
            yield temporary
            for path in [*temporary.rglob("*"), temporary]:
                sync(path)
            temporary.rename(final)
        sync(final.parent)
    except OSError as error:
        raise ExperimentError(f"cannot write {final}: {error.strerror or error}") from error


def require_literal(path: PathLike) -> str:
    """Return a path as text.

    Raises:
        ExperimentError: TensorFlow would interpret a character in it as a pattern when it reads a checkpoint.
    """
    if found := re.search(r"[*?[\\]", os.fspath(path)):
        raise ExperimentError(f"TensorFlow reads {found[0]!r} in {path} as a pattern; give the directory another name")
    return os.fspath(path)


def url_of(path: PathLike) -> str | None:
    """Return a path as a URL, ``scheme://rest`` without a slash at the end, or None for a local path.

    Raises:
        StorageError: the URL is invalid or a file URL with a host, its scheme is unknown, or the library for it is not
            installed.
    """
    text, found = os.fspath(path), _URL.fullmatch(os.fspath(path))
    if found is None and "://" in text:
        raise StorageError(f"{text!r} is no path and no URL; give one such as s3://bucket/folder")
    if found is None or found[1].lower() in ("file", "local"):
        if found is not None and re.match(r"[a-z]+://[^/]", text, re.IGNORECASE):
            raise StorageError(f"{text!r}: a file URL has an absolute path, as file:///{found[2]}")
        return None
    scheme, parts = found[1].lower(), [part for part in found[2].split("/") if part]
    url = f"{scheme}://{'/'.join(parts)}"
    if not parts or {".", ".."} & set(parts) or "\0" in url:
        raise StorageError(f"{text!r}: give a URL such as {scheme}://bucket/folder, without . or .. in it")
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:  # such as "Install s3fs to access S3"
        reason = str(error).partition("\n")[0]
        cure = "fsspec and S3 come with pip install 'prototrain[cloud]'"
        raise StorageError(f"cannot use {url}: {reason}; {cure}") from error
    return url


def local_path(path: PathLike) -> Path:
    """Return a local path, or a URL of the local disk (``file:///...``), as a `Path`; ``~`` is the home directory."""
    found = _URL.fullmatch(os.fspath(path))
    return Path(os.path.expanduser(path)) if found is None else Path("/", found[2])


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
