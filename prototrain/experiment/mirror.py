"""The files of an experiment at a URL and their copies in a local directory, in which everything works.

Downloaded, a file appears whole or not at all, and so does a checkpoint. Uploaded, a checkpoint is whole when its
meta.json is there, which comes last and names the sizes of the others; what the storage has of an upload that was cut
short is no checkpoint. In which order things are uploaded is such that a run can go on whenever it is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prototrain.errors import ExperimentError, StorageError
from prototrain.experiment.lease import is_lease
from prototrain.experiment.lock import LOCK
from prototrain.experiment.names import META, STEP, checkpoint_steps, is_own
from prototrain.system.files import write_atomic
from prototrain.system.storage import Found, Storage
from prototrain.system.urls import cache_home, url_of

_MIRRORS = "mirrors"
_RECORD = "run.json"
_NOT_COPIED = (LOCK, ".token", "metrics.index")
_NOT_FETCHED = ("exported",)  # large, and nothing that a run goes on from
_TEMPORARY = (".tmp-", ".old-")
_SMALL = 64 << 20  # bytes of a file that is read at once, so that what is uploaded is what it was at one moment


def local_copy(url: str) -> Path:
    """The directory that stands for a URL on this machine."""
    scheme, _, rest = url.partition("://")
    return cache_home() / _MIRRORS / scheme / rest


def url_of_copy(directory: Path) -> str | None:
    """The URL that a local directory stands for; None for any other directory."""
    if _MIRRORS not in directory.parts:
        return None
    try:
        scheme, *parts = directory.absolute().relative_to(cache_home() / _MIRRORS).parts
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

    # -- here to there ------------------------------------------------------------------------------------------------

    def upload(self, check: Callable[[], object]) -> bool:
        """Upload what has changed, and one checkpoint at most.

        Args:
            check: called right before a checkpoint becomes whole; raises if it must not.

        Returns:
            whether there are more checkpoints to be uploaded.

        Raises:
            StorageError: the storage cannot be reached, or refuses.
            OSError: a file here cannot be read.
        """
        # The record says whether there is a checkpoint, so it is read ahead of looking for them and uploaded behind
        # them; the rows up to a checkpoint's step are uploaded ahead of it.
        record = self._content(_RECORD)
        waiting = self._waiting()
        for name in self._others():
            if name != _RECORD and self._is_changed(name):
                self._upload_file(name)
        if waiting:
            self._upload_checkpoint(waiting[0], check)
        if record is not None and self._is_changed(_RECORD):
            self.storage.write(_RECORD, record[0])
            self.same[_RECORD] = record[1]
        spared = self._last_whole()
        gone = [name for name in self.same if not os.path.lexists(self.directory / name)]
        self._delete([name for name in gone if spared is None or _step_of(name) != spared])
        self.remember()
        return len(waiting) > 1

    def _last_whole(self) -> int | None:
        """The step of a checkpoint that is whole there and must stay although it was deleted here: none else is."""
        known = [step for name in self.same if name.endswith(f"/{META}") and (step := _step_of(name)) is not None]
        if any((self.directory / _folder(step)).exists() for step in known):
            return None
        return max(known, default=None)

    def _waiting(self) -> list[int]:
        """The steps of checkpoints that are not there: those that were best first, which the newest one relies on."""
        steps = checkpoint_steps(self.directory / "checkpoints")
        steps = [step for step in steps if self._is_changed(f"{_folder(step)}/{META}")]
        best = set()
        for path in (self.directory / "checkpoints").glob("m[ai][nx]-*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                best.add(json.loads(path.read_bytes())["step"])
        return sorted(steps, key=lambda step: (step in best, step), reverse=True)

    def _others(self) -> Iterator[str]:
        """The files that are not of a checkpoint."""
        for path, below, files in os.walk(self.directory):
            at = Path(path).relative_to(self.directory)
            is_checkpoints = at.as_posix() == "checkpoints"
            below[:] = sorted(
                one for one in below if not one.startswith(_TEMPORARY) and not (is_checkpoints and STEP.fullmatch(one))
            )
            for name in sorted(files):
                if name not in _NOT_COPIED and not name.startswith(_TEMPORARY):
                    yield (at / name).as_posix()

    def _is_changed(self, name: str) -> bool:
        with suppress(FileNotFoundError):
            now, then = (self.directory / name).stat(), self.same.get(name)
            return then is None or (now.st_size, now.st_mtime_ns) != (then.size, then.time)
        return False

    def _content(self, name: str) -> tuple[bytes, Same] | None:
        try:
            with open(self.directory / name, "rb") as file:
                found = os.fstat(file.fileno())
                return file.read(), Same(found.st_size, found.st_mtime_ns, None)
        except FileNotFoundError:
            return None

    def _upload_file(self, name: str) -> None:
        path = self.directory / name
        with suppress(FileNotFoundError):
            found = path.stat()
            if found.st_size > _SMALL:
                self.storage.upload({name: path})
                self.same[name] = Same(found.st_size, found.st_mtime_ns, None)
            elif (content := self._content(name)) is not None:
                self.storage.write(name, content[0])
                self.same[name] = content[1]

    def _upload_checkpoint(self, step: int, check: Callable[[], object]) -> None:
        """Upload a checkpoint, its meta.json last, once all others are there in their sizes."""
        source, folder = self.directory / _folder(step), _folder(step)
        held = self.directory / f".tmp-upload-{os.getpid()}"
        shutil.rmtree(held, ignore_errors=True)
        held.mkdir()
        try:
            for path in source.iterdir():
                os.link(path, held / path.name)  # training may delete it meanwhile
            files = {path.name: path for path in sorted(held.iterdir())}
            meta = files.pop(META)
        except (FileNotFoundError, KeyError):  # it was deleted before
            shutil.rmtree(held, ignore_errors=True)
            return
        try:
            # What is there under its name is of an upload that was cut short, or was found to be damaged.
            self._delete(list(self.storage.listing(folder)))
            if files:
                self.storage.upload({f"{folder}/{name}": path for name, path in files.items()})
            there = self.storage.listing(folder)
            for name, path in files.items():
                found = there.get(f"{folder}/{name}")
                if found is None or found.size not in (-1, path.stat().st_size):
                    raise StorageError(f"{self.storage}/{folder}/{name} is not there as it was uploaded")
            check()
            self.storage.write(f"{folder}/{META}", meta.read_bytes())
            for name, path in [*files.items(), (META, meta)]:
                here = path.stat()
                self.same[f"{folder}/{name}"] = Same(here.st_size, here.st_mtime_ns, None)
        finally:
            shutil.rmtree(held, ignore_errors=True)

    def _delete(self, names: list[str]) -> None:
        """Delete objects; of a checkpoint first what makes it one."""
        for group in (
            [name for name in names if name.endswith(f"/{META}")],
            [name for name in names if not name.endswith(f"/{META}")],
        ):
            self.storage.delete(group)
            for name in group:
                self.same.pop(name, None)

    def clear(self) -> None:
        """Delete everything there; what tells that it is an experiment goes last, and what a run looks for first."""
        names = [name for name in self.storage.listing() if not is_lease(name)]
        first, marks = (_RECORD, "metrics.jsonl"), ("config.json", "environment.json")
        self._delete([name for name in names if name in first])
        self._delete([name for name in names if name not in (*first, *marks)])
        self._delete([name for name in names if name in marks])
        self.same = {}

    # -- there to here ------------------------------------------------------------------------------------------------

    def download(self, *, whole: bool, announce: Callable[[str], object]) -> list[str]:
        """Make the directory what is there.

        Args:
            whole: whether checkpoints are wanted, too; else only directories that say which there are.
            announce: called with a line of text about what is not as it should be.

        Returns:
            what uploads that were cut short have left there.

        Raises:
            ExperimentError: what is there cannot be files of a directory, or is several experiments.
            StorageError: the storage cannot be reached, or refuses.
            OSError: a file here cannot be written.
        """
        listing = self.storage.listing()
        self._require_experiment(listing)
        found = {name: one for name, one in listing.items() if _is_wanted(name)}
        for name in found:
            if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
                raise ExperimentError(f"{self.storage} holds {name!r}, which cannot be a file; no run writes that")
        checkpoints = self._checkpoints(found, announce)
        others = {name: one for name, one in found.items() if _step_of(name) is None}
        self._save_unsaved(announce)
        staging = self.directory / f".tmp-fetch-{os.getpid()}"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            self._drop(others.keys(), checkpoints.keys())
            self._fetch(others, staging)
            for step in sorted(checkpoints, reverse=True):
                if whole:
                    self._fetch_checkpoint(step, checkpoints[step], staging)
                else:
                    (self.directory / _folder(step)).mkdir(parents=True, exist_ok=True)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        if not found:
            with suppress(OSError):
                self.directory.rmdir()
        self.remember()
        return [name for name in found if (of := _step_of(name)) is not None and of not in checkpoints]

    def _require_experiment(self, names: Collection[str]) -> None:
        """Leave alone what others have below this URL: their runs may be at work in the directories here."""
        below = sorted({name.partition("/")[0] for name in names if name.endswith("/environment.json")})
        if below and "environment.json" not in names:
            shown = ", ".join(below[:3]) + (", ..." if len(below) > 3 else "")
            raise ExperimentError(
                f"{self.storage} is not an experiment, but holds {shown}; `prototrain runs {self.storage}` lists them"
            )

    def _checkpoints(self, found: dict[str, Found], announce: Callable[[str], object]) -> dict[int, dict[str, Found]]:
        """The files of each checkpoint that is whole, by step; of the others nothing is taken."""
        checkpoints: dict[int, dict[str, Found]] = {}
        for name, one in found.items():
            if (step := _step_of(name)) is not None:
                checkpoints.setdefault(step, {})[name] = one
        for one_step, files in list(checkpoints.items()):
            if f"{_folder(one_step)}/{META}" not in files:
                what = f"the upload of the checkpoint of step {one_step} to {self.storage} was cut short"
                announce(f"{what}; it is left out")
                del checkpoints[one_step]
        return checkpoints

    def _save_unsaved(self, announce: Callable[[str], object]) -> None:
        """Put a directory aside that holds a checkpoint which was never uploaded, and that others have passed."""
        if not self.directory.is_dir():
            return
        present = [path for path in self.directory.iterdir() if not path.name.startswith((LOCK, *_TEMPORARY))]
        # Another directory is a copy of what another URL holds.
        ours = [path.name for path in present if is_own(path.name) or not path.is_dir()]
        steps = checkpoint_steps(self.directory / "checkpoints")
        lost = [step for step in steps if any((self.directory / _folder(step)).iterdir())]
        lost = [step for step in lost if f"{_folder(step)}/{META}" not in self.same]
        if not lost and (self.note.exists() or not ours):
            return
        target = cache_home() / "unsaved" / self.directory.relative_to(cache_home() / _MIRRORS)
        number = 1
        while (aside := target.with_name(f"{target.name}-{number}")).exists():
            number += 1
        aside.mkdir(parents=True)
        for name in ours:
            os.rename(self.directory / name, aside / name)
        self.same = {}
        what = f"the checkpoint of step {lost[-1]}, which was not uploaded," if lost else "what nobody knows of"
        announce(f"WARNING: {self.storage} is not what {self.directory} was a copy of; {what} is kept in {aside}")

    def _drop(self, others: Collection[str], steps: Collection[int]) -> None:
        """Delete what is not there any more; a file of the user's own, which never was there, stays."""
        for name in list(self._others()):
            if name not in others and (name in self.same or is_own(name.split("/")[0])):
                (self.directory / name).unlink()
                self.same.pop(name, None)
        for step in checkpoint_steps(self.directory / "checkpoints"):
            if step not in steps:
                shutil.rmtree(self.directory / _folder(step))
        self.same = {name: one for name, one in self.same.items() if os.path.lexists(self.directory / name)}

    def _is_same(self, name: str, there: Found) -> bool:
        known = self.same.get(name)
        return known is not None and known.mark == there.mark and bool(there.mark) and not self._is_changed(name)

    def _fetch(self, found: dict[str, Found], staging: Path) -> None:
        wanted = {name: one for name, one in found.items() if not self._is_same(name, one)}
        if not wanted:
            return
        self.storage.download({name: staging / name for name in wanted})
        for name, one in wanted.items():
            target = self.directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / name, target)
            self._know(name, one)

    def _fetch_checkpoint(self, step: int, found: dict[str, Found], staging: Path) -> None:
        target = self.directory / _folder(step)
        if all(self._is_same(name, one) for name, one in found.items()):
            return
        self.storage.download({name: staging / name for name in found})
        if target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(staging / _folder(step), target)
        for name, one in found.items():
            self._know(name, one)

    def _know(self, name: str, there: Found) -> None:
        here = (self.directory / name).stat()
        self.same[name] = Same(here.st_size, here.st_mtime_ns, there.mark)


def _folder(step: int) -> str:
    return f"checkpoints/step-{step:010d}"


def _step_of(name: str) -> int | None:
    """The step of the checkpoint that a file is of."""
    parts = name.split("/")
    match = STEP.fullmatch(parts[1]) if len(parts) > 2 and parts[0] == "checkpoints" else None
    return None if match is None else int(match[1])


def _is_wanted(name: str) -> bool:
    parts = name.split("/")
    is_temporary = any(part.startswith(_TEMPORARY) for part in parts)
    return not (is_temporary or is_lease(name) or parts[-1] in _NOT_COPIED or parts[0] in _NOT_FETCHED)
