"""Files: written whole or not at all, and never outside of the directory that they belong to."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def outsider(directory: Path, *, deep: bool = True) -> str | None:
    """The first entry of a directory that leads out of it, or is neither file nor directory, and what it is.

    Links that stay inside are harmless, and the directory itself may be a link. It need not exist.

    Args:
        directory: where to look.
        deep: whether to look into the directories in it as well.

    Raises:
        OSError: a directory cannot be read.
    """
    home = os.path.realpath(directory)
    waiting = [os.fspath(directory)]
    while waiting:
        # Others may be at work here, such as a run that deletes a checkpoint.
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)  # a link that leads in a circle leads nowhere else
                    if target != home and not target.startswith(os.path.join(home, "")):
                        return f"{entry.path} is a link to {target}, outside of the directory"
                elif entry.is_dir(follow_symlinks=False):
                    waiting += [entry.path] if deep else []
                elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                    return f"{entry.path} is a pipe, a socket or a device"
    return None


def open_file(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open what must be a file, and not a link to one; returns a descriptor.

    Raises:
        OSError: it is a link or no file, or it cannot be opened; a pipe is not waited for.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket, or a pipe without a reader
            what = "it is a link" if error.errno == errno.ELOOP else "it is not a file"
            raise OSError(error.errno, what, os.fspath(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file", os.fspath(path))
    return descriptor


# -- writing -----------------------------------------------------------------------------------------------------------

LONGEST_NAME = 255
"""Bytes of the name of one file or directory, in the usual file systems."""


def short_digest(content: bytes) -> str:
    """The first characters of a SHA-256 digest."""
    return hashlib.sha256(content).hexdigest()[:8]


def write_atomic(path: Path, content: str | bytes | Iterable[bytes], *, durable: bool = True) -> None:
    """Write a file so that a reader, or a crash, sees the old file or the new one, never a part.

    Args:
        path: its directory must exist.
        content: text (written as UTF-8), bytes, or pieces of bytes.
        durable: whether it must outlast a power failure; if not, that can leave an empty file.

    Raises:
        OSError: the file cannot be written; the old one is untouched and no temporary file is left.
    """
    encoded = content.encode("utf-8") if isinstance(content, str) else content
    pieces = [encoded] if isinstance(encoded, bytes) else encoded
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)  # what a killed write has left, or a link that somebody has put there
        with open(open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.writelines(pieces)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Make a file's content, or the renames and deletions inside a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def literal_prefix(prefix: str | Path) -> Iterator[str]:
    r"""Give the prefix of a checkpoint's files as a path that TensorFlow does not take for a pattern.

    TensorFlow looks for a checkpoint's files with a glob pattern, so below `lr=[0.1]` or `a\b` it finds none. There,
    links to the files are made in a temporary directory for as long as the context lasts.
    """
    prefix = Path(prefix)
    if not set("*?[\\") & set(str(prefix)) or not prefix.parent.is_dir():
        yield str(prefix)
        return
    with tempfile.TemporaryDirectory(prefix="prototrain-") as directory:
        for file in prefix.absolute().parent.iterdir():
            if file.name.startswith(f"{prefix.name}."):
                os.symlink(file, Path(directory, f"model{file.name.removeprefix(prefix.name)}"))
        yield f"{directory}/model"
