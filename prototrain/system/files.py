"""Files that appear whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prototrain.system.contained import open_file

LONGEST_NAME = 255
"""Bytes of the name of one file or directory, in the usual file systems."""


def short_digest(content: bytes) -> str:
    """The first characters of a SHA-256 digest."""
    return hashlib.sha256(content).hexdigest()[:8]


def write_atomic(path: Path, content: str | bytes | Iterable[bytes], *, durable: bool = True) -> None:
    """Write `content` to `path` so that a reader, or a crash, sees the old file or the new one, never a part.

    Args:
        path: the file to write; its directory must exist.
        content: text (written as UTF-8), bytes, or pieces of bytes, which need not be in memory at the same time.
        durable: whether it must outlast a power failure; if not, that can leave an empty file.

    Raises:
        OSError: the file cannot be written; the old one is untouched and nothing is left beside it.
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
