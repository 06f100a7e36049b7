"""The checkpoints of a run: directories that appear whole or not at all.

``step-<10 digits>/`` is written under a temporary name, synced and renamed. It is never overwritten. There is no index
file: the newest checkpoint is the highest step that verifies.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path

import tensorflow as tf

from prototrain.checkpoint.files import Checkpoint, Snapshot, UnknownFormatError, start_snapshot, verify
from prototrain.errors import CheckpointError
from prototrain.experiment.names import checkpoint_steps
from prototrain.system.files import sync
from prototrain.system.tracebacks import cause, first_line
from prototrain.system.wording import FRESH

_FRESH = f"put one back, or start again with {FRESH}"


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: where they are.
        announce: called with a line of text for the user.
        run_id: the run's; checkpoints of another run are not used. None accepts any.
    """

    def __init__(self, directory: Path, announce: Callable[[str], None] = print, *, run_id: str | None = None) -> None:
        self.directory = directory
        self._announce = announce
        self._run_id = run_id

    def steps(self) -> list[int]:
        """The steps of all checkpoints, verified or not, in ascending order.

        Raises:
            CheckpointError: the directory cannot be read.
        """
        try:
            return checkpoint_steps(self.directory)
        except OSError as error:
            raise CheckpointError(f"cannot read the checkpoints in {self.directory}: {error.strerror}") from error

    def path(self, step: int) -> Path:
        """The directory of a step's checkpoint."""
        return self.directory / f"step-{step:010d}"

    # -- saving -------------------------------------------------------------------------------------------------------

    def save(self, snapshot: Snapshot, *, aside: bool = False) -> Path:
        """Write a checkpoint at once; see `start`."""
        return self.start(snapshot, aside=aside)()

    def start(self, snapshot: Snapshot, *, aside: bool = False) -> Callable[[], Path]:
        """Begin to write a checkpoint. An existing one of the same step that verifies stays as it is.

        Args:
            snapshot: the content.
            aside: write it as ``failed-<step>``, which no resume uses.

        Returns:
            a function, for any thread, that writes the rest and returns the directory.

        Raises:
            CheckpointError: it cannot be written, and nothing of it is left; also from the function.
        """
        final = self.directory / f"failed-{snapshot.step:010d}" if aside else self.path(snapshot.step)
        if not aside and self._is_good(final):
            return lambda: final
        temporary = self.directory / f".tmp-{final.name}-{os.getpid()}"
        with _whole_or_nothing(temporary, final):
            if not self.directory.is_dir():
                self.directory.mkdir(parents=True)
                sync(self.directory.parent)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            write_rest = start_snapshot(temporary, snapshot)

        def finish() -> Path:
            with _whole_or_nothing(temporary, final):
                write_rest()
                if aside and final.exists():
                    self._delete(final)
                elif os.path.lexists(final) and not self.set_aside(final):
                    raise CheckpointError(f"cannot save step {snapshot.step}: {final} is damaged and cannot be moved")
                temporary.rename(final)
                sync(self.directory)  # a power failure before this may lose the rename, never a part of the files
            return final

        return finish

    def _is_good(self, path: Path) -> bool:
        if not path.exists():
            return False
        try:
            verify(path, run_id=self._run_id)
        except UnknownFormatError:
            raise
        except CheckpointError as error:
            self._announce(f"WARNING: {error}; it is written again")
            return False
        return True

    # -- deleting -----------------------------------------------------------------------------------------------------

    def prune(self, keep: int, *, protected: Set[int] = frozenset()) -> None:
        """Delete all but the newest `keep` checkpoints and those of the `protected` steps."""
        for step in self.steps()[:-keep]:
            self.remove(step, protected=protected)

    def remove(self, step: int, *, protected: Set[int] = frozenset()) -> None:
        """Delete a step's checkpoint, if there is one and the step is not `protected`; warn if that fails."""
        path = self.path(step)
        if step not in protected and os.path.lexists(path):
            try:
                self._delete(path)
            except OSError as error:
                self._announce(f"WARNING: cannot delete the checkpoint {path}: {error.strerror}")

    def sweep(self) -> None:
        """Delete what killed saves and deletions have left."""
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                if path.name.startswith((".tmp-", ".old-")):
                    _remove_tree(path)

    def _delete(self, path: Path) -> None:
        # Renamed first: a deletion that is killed must not leave something that looks like a checkpoint.
        doomed = _unused(path.with_name(f".old-{path.name}-{os.getpid()}"))
        path.rename(doomed)
        _remove_tree(doomed)

    # -- restoring ----------------------------------------------------------------------------------------------------

    def newest(
        self, check: Callable[[Checkpoint], object] | None = None, *, broken: list[Path] | None = None
    ) -> Checkpoint | None:
        """Find the newest checkpoint that verifies; warn about newer ones that do not. No file changes.

        Args:
            check: raises a CheckpointError if a whole checkpoint cannot be used.
            broken: the damaged ones are added to this list, for `set_aside`.

        Raises:
            UnknownFormatError: a newer checkpoint is whole, but in a format of another version.
            CheckpointError: there are or were checkpoints, but all are damaged.
        """
        broken = [] if broken is None else broken
        for step in reversed(self.steps()):
            path = self.path(step)
            try:
                checkpoint = verify(path, run_id=self._run_id)
                if check is not None:
                    check(checkpoint)
            except UnknownFormatError:
                raise
            except CheckpointError as error:
                self._announce(f"WARNING: {error}")
                broken.append(path)
                continue
            if broken:
                self._announce(f"WARNING: falling back to the checkpoint of step {step}, {path}")
            return checkpoint
        if broken:
            raise CheckpointError(f"none of the {len(broken)} checkpoints in {self.directory} can be used; {_FRESH}")
        aside = sorted(self.directory.glob(".bad-step-*"))
        if aside:
            raise CheckpointError(
                f"all checkpoints in {self.directory} are damaged or not finite, the last is {aside[-1]}; {_FRESH}"
            )
        return None

    def run_id(self) -> str | None:
        """The run of the newest checkpoint that verifies."""
        for step in reversed(self.steps()):
            with suppress(CheckpointError):
                found = verify(self.path(step)).meta.get("run_id")
                return found if isinstance(found, str) else None
        return None

    def set_all_aside(self) -> Path | None:
        """Move all checkpoints to another directory, so that a run can start from step 0 and lose nothing.

        Raises:
            CheckpointError: they cannot be moved.
        """
        if not self.steps():
            return None
        number = 1
        while (target := self.directory.with_name(f"{self.directory.name}.superseded-{number}")).exists():
            number += 1
        try:
            self.directory.rename(target)
            sync(target.parent)
        except OSError as error:
            raise CheckpointError(f"cannot move {self.directory} out of the way: {error.strerror}") from error
        return target

    def set_aside(self, path: Path) -> bool:
        """Rename a damaged checkpoint so that no resume finds it; returns whether that worked."""
        target = _unused(path.with_name(f".bad-{path.name}"))
        try:
            path.rename(target)
            sync(self.directory)
        except OSError as error:
            self._announce(f"WARNING: cannot set {path} aside: {error.strerror}")
            return False
        self._announce(f"{path.name} is kept as {target}")
        return True


@contextmanager
def _whole_or_nothing(temporary: Path, final: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, (OSError, tf.errors.OpError)):
            step = int(final.name.rpartition("-")[2])
            is_op = isinstance(error, tf.errors.OpError)
            reason = cause(error).rpartition("; ")[2] if is_op else first_line(error)  # without the temporary name
            raise CheckpointError(f"cannot save step {step} to {final}: {reason}") from error
        raise


def _unused(path: Path) -> Path:
    """A path that does not exist: the given one, or with a number."""
    candidate, number = path, 1
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _remove_tree(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
