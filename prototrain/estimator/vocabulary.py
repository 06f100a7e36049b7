"""Files of words, one in each line."""

from __future__ import annotations

from prototrain.errors import StorageError
from prototrain.system.storage import downloaded
from prototrain.system.urls import PathLike, local_path, url_of

UNREADABLE = (OSError, UnicodeDecodeError, StorageError)


def read_vocabulary(path: PathLike) -> list[str]:
    """The words of a file, which may lie at a URL.

    Raises:
        OSError, UnicodeDecodeError, StorageError: it cannot be read; `UNREADABLE`.
    """
    url = url_of(path)
    return (local_path(path) if url is None else downloaded(url)).read_text(encoding="utf-8").splitlines()
