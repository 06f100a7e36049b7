"""An experiment at a URL and its copy in a directory of this machine: where the copy lies, and what is the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prototrain.experiment.lock import LOCK
from prototrain.experiment.names import META, MIRRORS, STEP
from prototrain.system.files import write_atomic
from prototrain.system.storage import Storage
from prototrain.system.urls import cache_home, url_of

NOT_COPIED = (LOCK, ".token")
TEMPORARY = (".tmp-", ".old-")


def local_copy(url: str) -> Path:
    """The directory that stands for a URL on this machine."""
    scheme, _, rest = url.partition("://")
    return cache_home() / MIRRORS / scheme / rest


def url_of_copy(directory: Path) -> str | None:
    """The URL that a local directory stands for; None for any other directory."""
    if MIRRORS not in directory.parts:
        return None
    try:
        scheme, *parts = directory.absolute().relative_to(cache_home() / MIRRORS).parts
    except ValueError:
        return None
    return url_of(f"{scheme}://{'/'.join(parts)}") if parts else None


@dataclass(frozen=True)
class Same:
    """A file that is the same here and there: its size and time here, and the object's mark if it came from there."""

    size: int
    time: int
    mark: str | None


class Mirror:
    """One experiment's files here and there.

    Args:
        storage: where they lie.
        directory: where their copies lie.

    Attributes:
        same: the files that are known to be the same, by name.
        attempts: those of which one must have written last, for the copies to be no older than what is there.
    """

    def __init__(self, storage: Storage, directory: Path) -> None:
        self.storage = storage
        self.directory = directory
        digest = hashlib.sha256(storage.url.encode()).hexdigest()[:32]
        self.note = cache_home() / "notes" / f"{digest}.json"
        self.same: dict[str, Same] = {}
        self.attempts: list[str] = []

    def recall(self) -> None:
        """Take back what an earlier process has noted."""
        self.same, self.attempts = {}, []
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            found = json.loads(self.note.read_bytes())
            self.same = {name: Same(*one) for name, one in found["same"].items()}
            self.attempts = list(map(str, found["attempts"]))

    def remember(self) -> None:
        """Note what is known, for a later process; without the note all is downloaded again."""
        same = {name: [one.size, one.time, one.mark] for name, one in self.same.items()}
        content = {"url": self.storage.url, "attempts": self.attempts, "same": same}
        self.note.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.note, json.dumps(content), durable=False)

    def other_files(self) -> Iterator[str]:
        """The files that are not of a checkpoint."""
        for path, below, files in os.walk(self.directory):
            at = Path(path).relative_to(self.directory)
            is_checkpoints = at.as_posix() == "checkpoints"
            below[:] = sorted(
                one for one in below if not one.startswith(TEMPORARY) and not (is_checkpoints and STEP.fullmatch(one))
            )
            for name in sorted(files):
                if name not in NOT_COPIED and not name.startswith(TEMPORARY):
                    yield (at / name).as_posix()

    def is_changed(self, name: str) -> bool:
        """Whether a file here is another one than when it was last the same; not if there is none."""
        with suppress(FileNotFoundError):
            now, then = (self.directory / name).stat(), self.same.get(name)
            return then is None or (now.st_size, now.st_mtime_ns) != (then.size, then.time)
        return False

    def delete(self, names: list[str]) -> None:
        """Delete objects; of a checkpoint first what makes it one."""
        for group in (
            [name for name in names if name.endswith(f"/{META}")],
            [name for name in names if not name.endswith(f"/{META}")],
        ):
            self.storage.delete(group)
            for name in group:
                self.same.pop(name, None)


def folder_of(step: int) -> str:
    """The directory of the checkpoint of a step."""
    return f"checkpoints/step-{step:010d}"


def step_of(name: str) -> int | None:
    """The step of the checkpoint that a file is of."""
    parts = name.split("/")
    match = STEP.fullmatch(parts[1]) if len(parts) > 2 and parts[0] == "checkpoints" else None
    return None if match is None else int(match[1])
