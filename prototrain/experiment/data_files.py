"""Which files a run's data comes from, and what is in them: to tell later whether they are still the same.

There is no one place to ask. Python says which files it opens (audit events), and a tf.data pipeline holds the names of
those that it reads itself (`prototrain.data.pipeline.named_files`). Not found are files that C++ code reads without
telling anyone, such as that of HDF5.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

_HASHED_BYTES = 512 * 2**20  # of all files together: about a second's work at the start of a run
_LISTED = 1000
_LOOKED_AT = 100_000
_NO_DATA = ("/proc/", "/sys/", "/dev/", "/etc/")
_CODE = (".py", ".pyc", ".pyi", ".so")
_listening: list[set[str]] = []
_hooked = False


@contextmanager
def noting_files(opened: set[str]) -> Iterator[None]:
    """Add the absolute path of every file to `opened` that Python code opens for reading in the meantime."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_hear)  # for good: there is no way to take one away
        _hooked = True
    _listening.append(opened)
    try:
        yield
    finally:
        _listening[:] = [other for other in _listening if other is not opened]  # equal sets are not the same


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if not _listening or event != "open":
        return
    path, _, flags = arguments
    if isinstance(path, (str, bytes)) and isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR):
        for opened in _listening:
            opened.add(os.path.abspath(os.fsdecode(path)))


def describe_files(paths: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and hash of each file that may be data, by its path as a user would type it.

    Of many or large files only both ends are hashed, so that looking at them takes about a second; beyond a thousand,
    they are counted, and their names and sizes hashed.
    """
    files = sorted(path for path in paths if _may_be_data(path))
    found = {_shown(path): _describe(path, _HASHED_BYTES // len(files)) for path in files[:_LISTED]}
    rest = files[_LISTED:]
    if rest:
        sizes = [os.path.getsize(path) for path in rest[:_LOOKED_AT]]
        names = "\n".join(f"{path} {size}" for path, size in zip(rest, sizes, strict=False))
        digest = hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()
        found["(others)"] = {"files": len(rest), "bytes": sum(sizes), "sha256 of names and sizes": digest}
    return found


def file_changes(then: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> list[str]:
    """Name what differs between two descriptions, in words. A file that only lies elsewhere is the same."""
    gone = {path: entry for path, entry in then.items() if path not in now}
    new = {path: entry for path, entry in now.items() if path not in then}
    found = [
        f"data file {path} was {_in_words(entry)} and is {_in_words(now[path])}"
        for path, entry in then.items()
        if path in now and entry != now[path]
    ]
    found += [f"data file {path} is not read now" for path, entry in gone.items() if entry not in new.values()]
    return found + [f"data file {path} was not read then" for path, entry in new.items() if entry not in gone.values()]


def _in_words(entry: dict[str, Any]) -> str:
    digests = [str(value)[:8] for name, value in entry.items() if name.startswith("sha256")]
    return f"{entry['bytes']:,} bytes (sha256 {digests[0]})" if digests else ", ".join(entry)


def _may_be_data(path: str) -> bool:
    return not path.startswith(_NO_DATA) and not path.endswith(_CODE) and os.path.isfile(path)


def _describe(path: str, most: int) -> dict[str, Any]:
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            if size <= most:
                return {"bytes": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
            first = file.read(most // 2)
            file.seek(-(most // 2), os.SEEK_END)
            both = hashlib.sha256(first + file.read()).hexdigest()
    except OSError as error:  # a run that could read its data must not fail over a description of it
        return {"unreadable": str(error.strerror)}
    return {"bytes": size, f"sha256 of the first and last {most // 2} bytes": both}


def _shown(path: str) -> str:
    return os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path
