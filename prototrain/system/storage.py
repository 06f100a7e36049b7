"""Objects below a URL, through fsspec, and files that are downloaded from there once and kept.

Every failure is a `StorageError` with one line. So is a storage that hangs: each operation on a small object runs in a
thread, which is given up after a while.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from prototrain.errors import StorageError
from prototrain.system.terminal import printable
from prototrain.system.urls import cache_home
from prototrain.system.waiting import announcing

ANSWER_SECONDS = 30.0
"""How long an operation on one small object may take."""
# What a listing may tell about an object that changes when it is written again; each storage has its own words.
_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "updated", "mtime", "created")

T = TypeVar("T")


class Storage:
    """The objects below a URL, by their names relative to it. The first operation connects.

    Every method raises a `StorageError` if the storage cannot be reached, refuses, fails or hangs.

    Args:
        url: as `url_of` returns it.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __str__(self) -> str:
        return self.url

    def listing(self, folder: str = "") -> dict[str, str]:
        """Every object, or those in one folder, with a mark that changes when the object does ("" if unknown)."""

        def look(fs: Any, root: str) -> dict[str, str]:
            entries = fs.find(f"{root}/{folder}".rstrip("/"), detail=True)
            found = {path[len(root) + 1 :]: info for path, info in entries.items() if info.get("type") != "directory"}
            return {name: _mark(info) for name, info in found.items() if name and not name.endswith("/")}

        return self._do("look into", look, {}, is_long=not folder)

    def find(self, name: str) -> str | None:
        """The mark of one object; None if there is none."""

        def look(fs: Any, root: str) -> str | None:
            info = fs.info(f"{root}/{name}")
            return None if info.get("type") == "directory" else _mark(info)

        return self._do("look into", look, None)

    def read(self, name: str) -> bytes | None:
        """The content of an object; None if there is none."""
        return self._do("read from", lambda fs, root: bytes(fs.cat_file(f"{root}/{name}")), None)

    def write(self, name: str, content: bytes, *, is_new: bool = False) -> bool:
        """Write an object; if it `is_new`, only where there is none. Returns whether it was written.

        On a storage without conditional writes, two that write a new one at the same moment may both succeed.
        """

        def put(fs: Any, root: str) -> bool:
            try:
                fs.pipe_file(f"{root}/{name}", content, **({"mode": "create"} if is_new else {}))
            except FileExistsError:
                return False
            return True

        return self._do("write to", put)

    def upload(self, paths: Mapping[str, Path]) -> None:
        """Write files to objects, several at once where the storage allows it; their libraries have time limits."""
        if paths:
            here = list(map(str, paths.values()))
            self._do("write to", lambda fs, root: fs.put(here, [f"{root}/{name}" for name in paths]), is_long=True)

    def download(self, paths: Mapping[str, Path]) -> None:
        """Write objects to files, several at once where the storage allows it."""
        for path in paths.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        if paths:
            here = list(map(str, paths.values()))
            self._do("read from", lambda fs, root: fs.get([f"{root}/{name}" for name in paths], here), is_long=True)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, in this order; missing ones are ignored."""
        for name in names:  # `fs.rm` of many would take names with * or [ for patterns
            self._do("delete in", lambda fs, root, name=name: fs.rm_file(f"{root}/{name}"), None)

    @cached_property
    def _place(self) -> tuple[Any, str]:
        import fsspec

        # Others write there as well, so no listing is kept. fsspec keeps one connection for each kind of storage.
        fs, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        return fs, root.rstrip("/")

    def _do(self, what: str, act: Callable[..., T], *missing: T, is_long: bool = False) -> T:
        """Run an operation in a thread, for `ANSWER_SECONDS` at most unless it may be long.

        Args:
            what: it does, for messages.
            act: called with fsspec's file system and the path of the URL in it.
            missing: the result if the object does not exist.
            is_long: whether it has no time limit.
        """
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(act(*self._place))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, name="storage", daemon=True).start()
        try:
            return done.result(None if is_long else ANSWER_SECONDS)
        except FileNotFoundError as error:
            if missing:
                return missing[0]
            raise StorageError(f"cannot {what} {self.url}: there is no such bucket or folder ({error})") from error
        except Exception as error:  # each library has its own exceptions, without a common base
            if isinstance(error, TimeoutError) and not done.done():
                raise StorageError(f"cannot {what} {self.url}: no answer for {ANSWER_SECONDS:g} s") from None
            text = str(getattr(error, "strerror", None) or error).strip().partition("\n")[0]
            raise StorageError(f"cannot {what} {self.url}: {printable(text) or type(error).__name__}") from error


def _mark(info: Mapping[str, Any]) -> str:
    marks = [str(info[name]) for name in _MARKS if info.get(name) is not None]
    return " ".join([str(info.get("size")), *marks]) if marks else ""


def downloaded(url: str) -> Path:
    """A file at a URL as a local file, which is kept and used again while the object is the same."""
    base, _, name = url.rpartition("/")
    mark = Storage(base).find(name)
    if mark is None:
        raise StorageError(f"there is no file {url}")
    return downloaded_all(base, {name: mark})[0]


def downloaded_all(url: str, marks: Mapping[str, str]) -> list[Path]:
    """Files below a URL as local files; see `downloaded`.

    Args:
        url: what the names are relative to.
        marks: of the files, as `Storage.listing` returns them.
    """
    home = cache_home() / "files"
    digests = {name: hashlib.sha256(f"{url}/{name} {mark}".encode()).hexdigest()[:32] for name, mark in marks.items()}
    paths = {name: home / digest / name.rpartition("/")[2] for name, digest in digests.items()}
    lacking = [name for name, path in paths.items() if not marks[name] or not path.is_file()]
    what = f"{url}/{lacking[0]}" if len(lacking) == 1 else f"{len(lacking)} files of {url}"
    scratch = home / f".tmp-{os.getpid()}-{threading.get_ident()}"
    try:
        with announcing(f"downloading {what}"):
            Storage(url).download({name: scratch / digests[name] for name in lacking})
        for name in lacking:
            paths[name].parent.mkdir(parents=True, exist_ok=True)
            os.replace(scratch / digests[name], paths[name])
    except OSError as error:
        raise StorageError(f"cannot keep a copy of {what} in {home}: {error.strerror}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return list(paths.values())
