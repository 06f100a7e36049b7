"""What lies below a URL, through fsspec: listed, read, written, deleted. Whatever goes wrong is one clear line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from prototrain.errors import StorageError
from prototrain.system.terminal import printable

# What a listing may say of an object that changes when it is written again; each kind of storage has its own words.
_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "updated", "mtime", "created")


@dataclass(frozen=True)
class Found:
    """An object in a listing.

    Attributes:
        size: in bytes; -1 if the storage does not say.
        mark: a text that is another one once the object is written again, as far as the storage tells.
    """

    size: int
    mark: str


class Storage:
    """The objects below a URL, by their names relative to it. Nothing is connected before it is used.

    All that is done raises a `StorageError` where the storage cannot be reached, refuses, or fails.

    Args:
        url: as `url_of` gives it.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __str__(self) -> str:
        return self.url

    @cached_property
    def _place(self) -> tuple[Any, str]:
        import fsspec

        # Listings are looked up anew each time: others write there as well. To connect takes a second, so that fsspec
        # has one connection for all that is looked at.
        fs, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        return fs, root.rstrip("/")

    def listing(self, folder: str = "") -> dict[str, Found]:
        """Every object, or those in one folder, by its name; none if there is nothing."""
        with self._reaching("look into"):
            fs, root = self._place
            try:
                entries = fs.find(f"{root}/{folder}".rstrip("/"), detail=True)
            except FileNotFoundError:
                entries = {}
            found = {path[len(root) + 1 :]: info for path, info in entries.items() if info.get("type") != "directory"}
        return {
            name: Found(-1 if (size := info.get("size")) is None else int(size), _mark(info))
            for name, info in found.items()
            if name and not name.endswith("/")
        }

    def find(self, name: str) -> Found | None:
        """One object; None if there is none."""
        with self._reaching("look into"):
            fs, root = self._place
            try:
                info = fs.info(f"{root}/{name}")
            except FileNotFoundError:
                return None
        if info.get("type") == "directory":
            return None
        return Found(-1 if (size := info.get("size")) is None else int(size), _mark(info))

    def top(self) -> list[str]:
        """The names right below the URL, of objects and of folders."""
        with self._reaching("look into"):
            fs, root = self._place
            try:
                names = [path.rstrip("/") for path in fs.ls(root, detail=False)]
            except FileNotFoundError:
                names = []
        return sorted(name[len(root) + 1 :] for name in names if len(name) > len(root) + 1)

    def read(self, name: str) -> bytes | None:
        """The content of an object; None if there is none."""
        with self._reaching("read from"):
            fs, root = self._place
            try:
                return bytes(fs.cat_file(f"{root}/{name}"))
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Write an object, over what is there."""
        with self._reaching("write to"):
            fs, root = self._place
            fs.pipe_file(f"{root}/{name}", content)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one; False if there is.

        Where the storage has no such operation, two that do it at the very same moment may both succeed.
        """
        with self._reaching("write to"):
            fs, root = self._place
            try:
                fs.pipe_file(f"{root}/{name}", content, mode="create")
            except FileExistsError:
                return False
        return True

    def upload(self, paths: Mapping[str, Path]) -> None:
        """Write files into objects, several at the same time where the storage allows it."""
        with self._reaching("write to"):
            fs, root = self._place
            for path in paths.values():
                path.stat()  # fsspec passes over files that are not there
            fs.put([str(path) for path in paths.values()], [f"{root}/{name}" for name in paths])

    def download(self, paths: Mapping[str, Path]) -> None:
        """Write objects into files, several at the same time where the storage allows it."""
        with self._reaching("read from"):
            fs, root = self._place
            for path in paths.values():
                path.parent.mkdir(parents=True, exist_ok=True)
            fs.get([f"{root}/{name}" for name in paths], [str(path) for path in paths.values()])

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that are not there are no mistake."""
        with self._reaching("delete in"):
            fs, root = self._place
            paths = [f"{root}/{name}" for name in names]
            # `rm` takes a path for a pattern, and then others that match it are deleted, or this one is not.
            one_by_one = [path for path in paths if set("*?[") & set(path)]
            try:
                if rest := [path for path in paths if path not in one_by_one]:
                    fs.rm(rest)
            except FileNotFoundError:
                one_by_one = paths
            for path in one_by_one:
                if fs.exists(path):
                    fs.rm_file(path)

    @contextmanager
    def _reaching(self, what: str) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except Exception as error:  # each library has exceptions of its own, with no base that they share
            raise StorageError(f"cannot {what} {self.url}: {_reason(error)}") from error


def _mark(info: Mapping[str, Any]) -> str:
    return " ".join(str(info[name]) for name in _MARKS if info.get(name) is not None)


def _reason(error: BaseException) -> str:
    """Why, in one line; a missing bucket is a file that is not found, to fsspec."""
    text = str(getattr(error, "strerror", None) or error).strip()
    if isinstance(error, FileNotFoundError):
        text = f"there is no such bucket or folder ({text})"
    return printable(next(iter(text.splitlines()), "") or type(error).__name__)
