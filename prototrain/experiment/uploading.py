"""Uploading what a run has changed, in such an order that a run can go on whenever it is killed.

A checkpoint is whole when its meta.json is there, which comes last, once all others are there in their sizes; what the
storage has of an upload that was cut short is no checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from prototrain.errors import StorageError
from prototrain.experiment.lease import is_lease
from prototrain.experiment.mirror import Mirror, Same, folder_of, step_of
from prototrain.experiment.names import META, checkpoint_steps

_RECORD = "run.json"
_SMALL = 64 << 20  # bytes of a file that is read at once, so that what is uploaded is what it was at one moment


def upload(mirror: Mirror, check: Callable[[], object]) -> bool:
    """Upload what has changed, and one checkpoint at most.

    Args:
        mirror: of the experiment.
        check: called right before a checkpoint becomes whole; raises if it must not.

    Returns:
        whether there are more checkpoints to be uploaded.

    Raises:
        StorageError: the storage cannot be reached, or refuses.
        OSError: a file here cannot be read.
    """
    # The record says whether there is a checkpoint, so it is read ahead of looking for them and uploaded behind
    # them; the rows up to a checkpoint's step are uploaded ahead of it.
    record = _content(mirror, _RECORD)
    waiting = _waiting(mirror)
    for name in mirror.other_files():
        if name != _RECORD and mirror.is_changed(name):
            _upload_file(mirror, name)
    if waiting:
        _upload_checkpoint(mirror, waiting[0], check)
    if record is not None and mirror.is_changed(_RECORD):
        mirror.storage.write(_RECORD, record[0])
        mirror.same[_RECORD] = record[1]
    spared = _last_whole(mirror)
    gone = [name for name in mirror.same if not os.path.lexists(mirror.directory / name)]
    mirror.delete([name for name in gone if spared is None or step_of(name) != spared])
    mirror.remember()
    return len(waiting) > 1


def _last_whole(mirror: Mirror) -> int | None:
    """The step of a checkpoint that is whole there and must stay although it was deleted here: none else is."""
    known = [step for name in mirror.same if name.endswith(f"/{META}") and (step := step_of(name)) is not None]
    if any((mirror.directory / folder_of(step)).exists() for step in known):
        return None
    return max(known, default=None)


def _waiting(mirror: Mirror) -> list[int]:
    """The steps of checkpoints that are not there: those that were best first, which the newest one relies on."""
    steps = checkpoint_steps(mirror.directory / "checkpoints")
    steps = [step for step in steps if mirror.is_changed(f"{folder_of(step)}/{META}")]
    best = set()
    for path in (mirror.directory / "checkpoints").glob("m[ai][nx]-*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            best.add(json.loads(path.read_bytes())["step"])
    return sorted(steps, key=lambda step: (step in best, step), reverse=True)


def _content(mirror: Mirror, name: str) -> tuple[bytes, Same] | None:
    try:
        with open(mirror.directory / name, "rb") as file:
            found = os.fstat(file.fileno())
            return file.read(), Same(found.st_size, found.st_mtime_ns, None)
    except FileNotFoundError:
        return None


def _upload_file(mirror: Mirror, name: str) -> None:
    path = mirror.directory / name
    with suppress(FileNotFoundError):
        found = path.stat()
        if found.st_size > _SMALL:
            mirror.storage.upload({name: path})
            mirror.same[name] = Same(found.st_size, found.st_mtime_ns, None)
        elif (content := _content(mirror, name)) is not None:
            mirror.storage.write(name, content[0])
            mirror.same[name] = content[1]


def _upload_checkpoint(mirror: Mirror, step: int, check: Callable[[], object]) -> None:
    """Upload a checkpoint, its meta.json last, once all others are there in their sizes."""
    source, folder = mirror.directory / folder_of(step), folder_of(step)
    held = mirror.directory / f".tmp-upload-{os.getpid()}"
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
        mirror.delete(list(mirror.storage.listing(folder)))
        if files:
            mirror.storage.upload({f"{folder}/{name}": path for name, path in files.items()})
        there = mirror.storage.listing(folder)
        for name, path in files.items():
            found = there.get(f"{folder}/{name}")
            if found is None or found.size not in (-1, path.stat().st_size):
                raise StorageError(f"{mirror.storage}/{folder}/{name} is not there as it was uploaded")
        check()
        mirror.storage.write(f"{folder}/{META}", meta.read_bytes())
        for name, path in [*files.items(), (META, meta)]:
            here = path.stat()
            mirror.same[f"{folder}/{name}"] = Same(here.st_size, here.st_mtime_ns, None)
    finally:
        shutil.rmtree(held, ignore_errors=True)


def upload_changes(mirror: Mirror, path: Path) -> None:
    """Upload a file, or those of a directory, as far as they have changed, and delete what is gone of them there."""
    files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
    names = {one.relative_to(mirror.directory).as_posix(): one for one in files}
    changed = {name: (one, one.stat()) for name, one in names.items() if mirror.is_changed(name)}
    mirror.storage.upload({name: one for name, (one, _) in changed.items()})
    mirror.same |= {name: Same(found.st_size, found.st_mtime_ns, None) for name, (_, found) in changed.items()}
    folder = path.relative_to(mirror.directory).as_posix() + "/"
    mirror.delete([name for name in mirror.same if name.startswith(folder) and name not in names])
    mirror.remember()


def clear(mirror: Mirror) -> None:
    """Delete everything there; what tells that it is an experiment goes last, and what a run looks for first."""
    names = [name for name in mirror.storage.listing() if not is_lease(name)]
    first, marks = (_RECORD, "metrics.jsonl"), ("config.json", "environment.json")
    mirror.delete([name for name in names if name in first])
    mirror.delete([name for name in names if name not in (*first, *marks)])
    mirror.delete([name for name in names if name in marks])
    mirror.same = {}
