"""Access to objects below a URL through fsspec, and a cache of downloaded files.

Every failure raises a `StorageError` with one line. Operations on small objects run in a thread with a time limit, so
that a storage that hangs raises a `StorageError`, too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from prototrain.errors import StorageError
from prototrain.system.files import cache_home
from prototrain.system.signals import in_thread
from prototrain.system.terminal import announcing, printable

ANSWER_SECONDS = 30.0  # the time limit for an operation on one small object
# Entries of a listing that change when an object is overwritten; their names depend on the storage.
_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "updated", "mtime", "created")

T = TypeVar("T")


class Storage:
    """The objects below a URL from `url_of`, by their names relative to it. The first operation opens the connection.

    Every method raises a `StorageError` if the storage cannot be reached, denies access, fails or hangs.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __str__(self) -> str:
        return self.url

    def listing(self, folder: str = "") -> dict[str, str]:
        """Return all objects, or those in a folder: by name a mark that changes with the object ("" if unknown)."""

        def look(fs: Any, root: str) -> dict[str, str]:
            entries = fs.find(f"{root}/{folder}".rstrip("/"), detail=True)
            found = {path[len(root) + 1 :]: info for path, info in entries.items() if info.get("type") != "directory"}
            return {name: _mark(info) for name, info in found.items() if name and not name.endswith("/")}

        return self._do("look into", look, {}, is_long=not folder)

    def find(self, name: str) -> str | None:
        """Return the mark of an object, or None if it does not exist."""

        def look(fs: Any, root: str) -> str | None:
            info = fs.info(f"{root}/{name}")
            return None if info.get("type") == "directory" else _mark(info)

        return self._do("look into", look, None)

    def read(self, name: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist."""
        return self._do("read from", lambda fs, root: bytes(fs.cat_file(f"{root}/{name}")), None)

    def write(self, name: str, content: bytes, *, is_new: bool = False) -> bool:
        """Write an object, with `is_new` only if it does not exist; returns whether it was written.

        On a storage without conditional writes, two simultaneous writes of a new object may both succeed.
        """

        def put(fs: Any, root: str) -> bool:
            try:
                fs.pipe_file(f"{root}/{name}", content, **({"mode": "create"} if is_new else {}))
            except FileExistsError:
                return False
            return True

        return self._do("write to", put)

    def upload(self, paths: Mapping[str, Path]) -> None:
        """Upload files to objects, several at once if the storage supports it. Its library sets the time limits."""
        here = list(map(str, paths.values()))
        if here:
            self._do("write to", lambda fs, root: fs.put(here, [f"{root}/{name}" for name in paths]), is_long=True)

    def download(self, paths: Mapping[str, Path], scratch: Path) -> None:
        """Download objects to files, several at once if the storage supports it. Files appear atomically, in order.

        `scratch` is a directory for incomplete files on the same disk. It is deleted at the end.
        """
        if not paths:
            return
        parts = [str(scratch / str(number)) for number in range(len(paths))]
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            self._do("read from", lambda fs, root: fs.get([f"{root}/{name}" for name in paths], parts), is_long=True)
            for part, path in zip(parts, paths.values(), strict=True):
                path.parent.mkdir(parents=True, exist_ok=True)
                os.replace(part, path)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects in the given order. Missing objects are ignored."""
        for name in names:  # `fs.rm` would treat names with * or [ as patterns
            self._do("delete in", lambda fs, root, name=name: fs.rm_file(f"{root}/{name}"), None)

    @cached_property
    def _place(self) -> tuple[Any, str]:
        import fsspec

        # Listings are not cached, since other processes write there, too. fsspec keeps one connection per storage type.
        fs, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        return fs, root.rstrip("/")

    def _do(self, what: str, act: Callable[..., T], *missing: T, is_long: bool = False) -> T:
        """Run an operation in a thread, for at most `ANSWER_SECONDS` unless `is_long` is set.

        `act` is called with the fsspec file system and the URL's path in it. `missing` is the result if the object does
        not exist.
        """
        done = in_thread(lambda: act(*self._place), "storage")
        try:
            return done.result(None if is_long else ANSWER_SECONDS)
        except FileNotFoundError as error:
            if missing:
                return missing[0]
            raise StorageError(f"cannot {what} {self.url}: there is no such bucket or folder ({error})") from error
        except Exception as error:  # the exceptions of the storage libraries have no common base
            if isinstance(error, TimeoutError) and not done.done():
                raise StorageError(f"cannot {what} {self.url}: no answer for {ANSWER_SECONDS:g} s") from None
            text = str(getattr(error, "strerror", None) or error).strip().partition("\n")[0]
            raise StorageError(f"cannot {what} {self.url}: {printable(text) or type(error).__name__}") from error


def _mark(info: Mapping[str, Any]) -> str:
    marks = [str(info[name]) for name in _MARKS if info.get(name) is not None]
    return " ".join([str(info.get("size")), *marks]) if marks else ""


def downloaded(url: str) -> Path:
    """Download a file, or reuse the local copy if the object has not changed; returns the path of the local copy.

    Raises:
        StorageError: the file does not exist or cannot be downloaded.
    """
    base, _, name = url.rpartition("/")
    mark = Storage(base).find(name)
    if mark is None:
        raise StorageError(f"there is no file {url}")
    return downloaded_all(base, {name: mark})[0]


def downloaded_all(url: str, marks: Mapping[str, str]) -> list[Path]:
    """Download files below a URL, given by name and mark as from `Storage.listing`; see `downloaded`.

    Returns:
        the paths of the local copies, in the same order.
    """
    home = cache_home() / "files"
    digests = {name: hashlib.sha256(f"{url}/{name} {mark}".encode()).hexdigest()[:32] for name, mark in marks.items()}
    paths = {name: home / digest / name.rpartition("/")[2] for name, digest in digests.items()}
    lacking = [name for name, path in paths.items() if not marks[name] or not path.is_file()]
    what = f"{url}/{lacking[0]}" if len(lacking) == 1 else f"{len(lacking)} files of {url}"
    scratch = home / f".tmp-{os.getpid()}-{threading.get_ident()}"
    try:
        with announcing(f"downloading {what}"):
            Storage(url).download({name: paths[name] for name in lacking}, scratch)
    except OSError as error:
        raise StorageError(f"cannot keep a copy of {what} in {home}: {error.strerror}") from error
    return list(paths.values())
