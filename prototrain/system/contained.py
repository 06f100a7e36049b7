"""Directories that a stranger may have filled: links that lead out of them, pipes and devices are found before use.

What a run writes and deletes must lie below its own directory, and to open a pipe would wait for ever. Every directory
is looked through once, before anything is written (`outsider`); the few files that are then written in place are opened
so that nothing but a file of that directory can be meant (`open_file`).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def outsider(directory: Path, *, deep: bool = True) -> str | None:
    """What is wrong with the first entry of a directory that leads out of it, or is neither file nor directory.

    Links that stay inside are followed by nobody who would mind, and the directory itself may be a link.

    Args:
        directory: where to look; it need not be there.
        deep: whether to look into the directories in it as well.

    Returns:
        a path and what it is, in words, or None if there is no such entry.

    Raises:
        OSError: a directory cannot be read.
    """
    home = os.path.realpath(directory)
    waiting = [os.fspath(directory)]
    while waiting:
        at = waiting.pop()
        # Others may be at work here, such as the run whose newest checkpoint is looked at: what is gone is gone.
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(at) as entries:
            for entry in entries:
                if entry.is_symlink():
                    found = _leads_to(entry.path, home)
                elif entry.is_dir(follow_symlinks=False):
                    found = None
                    waiting += [entry.path] if deep else []
                else:
                    found = None if entry.is_file(follow_symlinks=False) else special(entry.path)
                if found is not None:
                    return f"{entry.path} is {found}"
    return None


def _leads_to(link: str, home: str) -> str | None:
    target = os.path.realpath(link)
    # One that leads in a circle leads nowhere else.
    is_inside = target == home or target.startswith(os.path.join(home, ""))
    return None if is_inside else f"a link to {target}, outside of the directory"


def special(path: str | Path) -> str | None:
    """What a path is that is neither file nor directory, in words; None if it is one of them, or not there."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    return _KINDS.get(stat.S_IFMT(mode))


def has_other_names(path: Path) -> bool:
    """Whether writing to a file in place would change one with another name (a hard link) as well."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink > 1


def open_file(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open what must be a file, and not a link to one.

    Args:
        path: of the file.
        flags: as for `os.open`.

    Returns:
        a descriptor.

    Raises:
        OSError: it is a link or no file, or it cannot be opened; a pipe is not waited for.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket, or a pipe that nobody reads
            what = "it is a link" if error.errno == errno.ELOOP else "it is not a file"
            raise OSError(error.errno, what, os.fspath(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file", os.fspath(path))
    return descriptor
