"""Making a directory what is at a URL: a file of it appears whole or not at all, and so does a checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from prototrain.errors import ExperimentError
from prototrain.experiment.lease import is_lease
from prototrain.experiment.lock import LOCK
from prototrain.experiment.mirror import NOT_COPIED, TEMPORARY, Mirror, Same, folder_of, step_of
from prototrain.experiment.names import META, MIRRORS, checkpoint_steps, is_own
from prototrain.system.storage import Found
from prototrain.system.urls import cache_home

_NOT_FETCHED = ("exported",)  # large, and nothing that a run goes on from


def download(mirror: Mirror, *, whole: bool, announce: Callable[[str], object]) -> list[str]:
    """Make the directory what is there.

    Args:
        mirror: of the experiment.
        whole: whether checkpoints are wanted, too; else only directories that say which there are.
        announce: called with a line of text about what is not as it should be.

    Returns:
        what uploads that were cut short have left there.

    Raises:
        ExperimentError: what is there cannot be files of a directory, or is several experiments.
        StorageError: the storage cannot be reached, or refuses.
        OSError: a file here cannot be written.
    """
    listing = mirror.storage.listing()
    _require_experiment(mirror, listing)
    found = {name: one for name, one in listing.items() if _is_wanted(name)}
    for name in found:
        if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
            raise ExperimentError(f"{mirror.storage} holds {name!r}, which cannot be a file; no run writes that")
    checkpoints = _checkpoints(mirror, found, announce)
    others = {name: one for name, one in found.items() if step_of(name) is None}
    _save_unsaved(mirror, announce)
    staging = mirror.directory / f".tmp-fetch-{os.getpid()}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        _drop(mirror, others.keys(), checkpoints.keys())
        _fetch(mirror, others, staging)
        for step in sorted(checkpoints, reverse=True):
            if whole:
                _fetch_checkpoint(mirror, step, checkpoints[step], staging)
            else:
                (mirror.directory / folder_of(step)).mkdir(parents=True, exist_ok=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if not found:
        with suppress(OSError):
            mirror.directory.rmdir()
    mirror.remember()
    return [name for name in found if (of := step_of(name)) is not None and of not in checkpoints]


def _require_experiment(mirror: Mirror, names: Collection[str]) -> None:
    """Leave alone what others have below this URL: their runs may be at work in the directories here."""
    below = sorted({name.partition("/")[0] for name in names if name.endswith("/environment.json")})
    if below and "environment.json" not in names:
        shown = ", ".join(below[:3]) + (", ..." if len(below) > 3 else "")
        raise ExperimentError(
            f"{mirror.storage} is not an experiment, but holds {shown}; `prototrain runs {mirror.storage}` lists them"
        )


def _checkpoints(
    mirror: Mirror, found: dict[str, Found], announce: Callable[[str], object]
) -> dict[int, dict[str, Found]]:
    """The files of each checkpoint that is whole, by step; of the others nothing is taken."""
    checkpoints: dict[int, dict[str, Found]] = {}
    for name, one in found.items():
        if (step := step_of(name)) is not None:
            checkpoints.setdefault(step, {})[name] = one
    for one_step, files in list(checkpoints.items()):
        if f"{folder_of(one_step)}/{META}" not in files:
            what = f"the upload of the checkpoint of step {one_step} to {mirror.storage} was cut short"
            announce(f"{what}; it is left out")
            del checkpoints[one_step]
    return checkpoints


def _save_unsaved(mirror: Mirror, announce: Callable[[str], object]) -> None:
    """Put a directory aside that holds a checkpoint which was never uploaded, and that others have passed."""
    if not mirror.directory.is_dir():
        return
    present = [path for path in mirror.directory.iterdir() if not path.name.startswith((LOCK, *TEMPORARY))]
    # Another directory is a copy of what another URL holds.
    ours = [path.name for path in present if is_own(path.name) or not path.is_dir()]
    steps = checkpoint_steps(mirror.directory / "checkpoints")
    lost = [step for step in steps if any((mirror.directory / folder_of(step)).iterdir())]
    lost = [step for step in lost if f"{folder_of(step)}/{META}" not in mirror.same]
    if not lost and (mirror.note.exists() or not ours):
        return
    target = cache_home() / "unsaved" / mirror.directory.relative_to(cache_home() / MIRRORS)
    number = 1
    while (aside := target.with_name(f"{target.name}-{number}")).exists():
        number += 1
    aside.mkdir(parents=True)
    for name in ours:
        os.rename(mirror.directory / name, aside / name)
    mirror.same = {}
    what = f"the checkpoint of step {lost[-1]}, which was not uploaded," if lost else "what nobody knows of"
    announce(f"WARNING: {mirror.storage} is not what {mirror.directory} was a copy of; {what} is kept in {aside}")


def _drop(mirror: Mirror, others: Collection[str], steps: Collection[int]) -> None:
    """Delete what is not there any more; a file of the user's own, which never was there, stays."""
    for name in list(mirror.other_files()):
        if name not in others and (name in mirror.same or is_own(name.split("/")[0])):
            (mirror.directory / name).unlink()
            mirror.same.pop(name, None)
    for step in checkpoint_steps(mirror.directory / "checkpoints"):
        if step not in steps:
            shutil.rmtree(mirror.directory / folder_of(step))
    mirror.same = {name: one for name, one in mirror.same.items() if os.path.lexists(mirror.directory / name)}


def _is_same(mirror: Mirror, name: str, there: Found) -> bool:
    known = mirror.same.get(name)
    return known is not None and known.mark == there.mark and bool(there.mark) and not mirror.is_changed(name)


def _fetch(mirror: Mirror, found: dict[str, Found], staging: Path) -> None:
    wanted = {name: one for name, one in found.items() if not _is_same(mirror, name, one)}
    if not wanted:
        return
    mirror.storage.download({name: staging / name for name in wanted})
    for name, one in wanted.items():
        target = mirror.directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / name, target)
        _know(mirror, name, one)


def _fetch_checkpoint(mirror: Mirror, step: int, found: dict[str, Found], staging: Path) -> None:
    target = mirror.directory / folder_of(step)
    if all(_is_same(mirror, name, one) for name, one in found.items()):
        return
    mirror.storage.download({name: staging / name for name in found})
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.rename(staging / folder_of(step), target)
    for name, one in found.items():
        _know(mirror, name, one)


def _know(mirror: Mirror, name: str, there: Found) -> None:
    here = (mirror.directory / name).stat()
    mirror.same[name] = Same(here.st_size, here.st_mtime_ns, there.mark)


def _is_wanted(name: str) -> bool:
    parts = name.split("/")
    is_temporary = any(part.startswith(TEMPORARY) for part in parts)
    return not (is_temporary or is_lease(name) or parts[-1] in NOT_COPIED or parts[0] in _NOT_FETCHED)
