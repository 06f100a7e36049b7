"""The files that a run's data comes from, with hashes, to tell later whether they are still the same.

Python reports which files it opens (audit events), and a tf.data pipeline holds the names of those that it reads
(`prototrain.data.pipeline.named_files`). Files that other C++ code reads, such as HDF5, are not found.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

_HASHED_BYTES = 512 * 2**20  # of all files together: about a second at the start of a run
_LISTED = 1000
_NO_DATA = ("/proc/", "/sys/", "/dev/", "/etc/")
_CODE = (".py", ".pyc", ".pyi", ".so")
_listening: list[set[str]] = []
_hooked = False


@contextmanager
def noting_files(opened: set[str]) -> Iterator[None]:
    """Context manager that adds the absolute path of every file that Python code opens for reading to `opened`."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_hear)  # which cannot be removed again
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

    Of many or large files only both ends are hashed, which takes about a second; beyond a thousand, they are counted.
    """
    files = sorted(path for path in paths if not path.startswith(_NO_DATA) and not path.endswith(_CODE))
    files = [path for path in files if os.path.isfile(path)]
    here = os.getcwd() + os.sep
    found = {path.removeprefix(here): _describe(path, _HASHED_BYTES // len(files)) for path in files[:_LISTED]}
    return found | ({"(others)": {"files": len(files) - _LISTED}} if len(files) > _LISTED else {})


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


def file_changes(then: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> list[str]:
    """The differences of two descriptions, in words. A file that was only moved is the same."""
    gone = {path: entry for path, entry in then.items() if path not in now}
    new = {path: entry for path, entry in now.items() if path not in then}
    changed = {path: entry for path, entry in then.items() if path in now and entry != now[path]}
    return [
        *(f"data file {path} was {_words(entry)} and is {_words(now[path])}" for path, entry in changed.items()),
        *(f"data file {path} is not read now" for path, entry in gone.items() if entry not in new.values()),
        *(f"data file {path} was not read then" for path, entry in new.items() if entry not in gone.values()),
    ]


def _words(entry: dict[str, Any]) -> str:
    digests = [str(value)[:8] for name, value in entry.items() if name.startswith("sha256")]
    return f"{entry['bytes']:,} bytes (sha256 {digests[0]})" if digests else ", ".join(entry)
