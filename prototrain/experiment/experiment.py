"""The experiment directory: its paths, its lock, what a run writes at its start, and its deletion."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prototrain.errors import ExperimentError
from prototrain.experiment.lock import LOCK, DirectoryLock, is_locked
from prototrain.experiment.names import MARKS, MIRRORS, is_own
from prototrain.system.files import LONGEST_NAME, outsider, write_atomic
from prototrain.system.urls import PathLike, joined, local_path, url_of

if TYPE_CHECKING:
    from prototrain.config import Config
    from prototrain.experiment.remote import Remote

STARTED = "PROTOTRAIN_STARTED"
"""The environment variable that tells a worker when the run was started, which is the same for all of them."""
VERIFY = "PROTOTRAIN_VERIFY"
"""The environment variable that names the directory of a record, in the processes that `prototrain verify` starts."""
_redirected: dict[str, int] = {}  # numbers of the experiments of this process, while it is verified


class Experiment:
    """Paths below one experiment directory. Creating the object touches no file.

    Args:
        directory: where the run's files go; made when the run starts. For a URL, `directory` is the one on this machine
            that stands for it.

    Attributes:
        remote: what lies at the URL; None for a local directory.

    Raises:
        ExperimentError: there cannot be a directory of this name.
        StorageError: it is a URL with an unknown scheme, or whose library is missing.
    """

    def __init__(self, directory: PathLike) -> None:
        self.remote = _remote(directory)
        self.directory = local_path(directory) if self.remote is None else self.remote.directory
        longest = max(map(os.fsencode, self.directory.parts), key=len, default=b"")
        if len(longest) > LONGEST_NAME or b"\0" in os.fsencode(self.directory):
            raise ExperimentError(
                f"{longest[:40].decode(errors='replace')!r}... cannot be the name of a directory: it has more than "
                f"{LONGEST_NAME} bytes, or a NUL"
            )
        self.checkpoints = self.directory / "checkpoints"
        self.summaries = self.directory / "summaries"
        self.metrics = self.directory / "metrics.jsonl"
        self.log = self.directory / "train.log"
        self.environment = self.directory / "environment.json"
        self.record = self.directory / "run.json"
        self.token = self.directory / ".token"
        self._lock = DirectoryLock(self.directory, name=str(self))

    @classmethod
    def from_config(cls, config: Config) -> Experiment:
        """The directory that a config names; ``{timestamp}`` in the name becomes the local time of the start."""
        started = os.environ.get(STARTED) or time.strftime("%Y%m%d-%H%M%S")
        name = config["trainer.experiment_name"].replace("{timestamp}", started)
        return cls.of_run(joined(config["trainer.experiment_base_dir"], name))

    @classmethod
    def of_run(cls, directory: PathLike) -> Experiment:
        """The experiment of a run of this process; in one that `prototrain verify` has started, a directory of the
        record stands for the given one."""
        record = os.environ.get(VERIFY)
        if record is None or str(directory).startswith(record):
            return cls(directory)
        # Numbered in the order of their first use: a name may have the time or a process's number in it.
        number = _redirected.setdefault(str(directory), len(_redirected) + 1)
        return cls(os.path.join(record, "experiments", str(number)))

    def __str__(self) -> str:
        return str(self.directory if self.remote is None else self.remote)

    def shown(self, path: Path) -> str:
        """What a path in the directory is called for the user: its URL, if the experiment has one."""
        return str(path) if self.remote is None else f"{self.remote}/{path.relative_to(self.directory).as_posix()}"

    @property
    def run_id(self) -> str | None:
        """What tells this run from any other, given when its directory was made; moving or copying keeps it."""
        try:
            found = json.loads(self.environment.read_text(encoding="utf-8"))["run_id"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return found if isinstance(found, str) else None

    # -- the lock ---------------------------------------------------------------------------------------------------

    def lock(self, announce: Callable[[str], object] = print) -> str | None:
        """Make the directory if need be and take it for this process; it is free again when the process ends.

        Args:
            announce: called with a line of text about a wait for the storage at a URL.

        Returns:
            a line about a run that died with the lock, or None.

        Raises:
            ExperimentError: another run has the directory, it cannot be made or written, or something in it leads out
                of it.
            StorageError: the storage at a URL cannot be read or written.
        """
        self.check_inside()
        died = self._lock.take()
        if self.remote is not None:
            try:
                died = self.remote.open(announce) or died
            except BaseException:
                self._lock.give_back()
                raise
        return died

    def unlock(self, announce: Callable[[str], object] = print) -> None:
        """Give the directory back."""
        try:
            if self.remote is not None:
                self.remote.close(announce)
        finally:
            self._lock.give_back()

    def fetch(self, *, whole: bool = False) -> None:
        """Update the local copy of an experiment at a URL, for those that read it; see `Remote.fetch`."""
        if self.remote is not None:
            self.remote.fetch(whole=whole)

    def keep(self, path: Path) -> str:
        """Upload what a command has added to the local copy of a URL; returns `shown` of the path."""
        if self.remote is not None:
            self.remote.keep()
        return self.shown(path)

    def is_gone(self) -> bool:
        """Whether the directory was deleted, moved, or replaced by another one, since this process has taken it."""
        try:
            # To delete the lock alone is a mistake, too, but loses nothing.
            return self._lock.is_lost() and ((self.directory / LOCK).exists() or not self.environment.exists())
        except OSError:  # of a network that does not answer, for example, nothing is known
            return False

    def check_free(self) -> None:
        """Fail early if another run has the directory, or a run could not use it.

        Raises:
            ExperimentError: another run has it, or something in it leads out of it.
        """
        self.check_inside()
        try:
            self._lock.check_free()
        except OSError as error:
            raise ExperimentError(f"cannot use {error.filename}: {error.strerror}") from error

    def check_inside(self, *, deep: bool = True) -> None:
        """Check that nothing in the directory (if `deep`, at any depth) leads out of it or is no file or directory.

        Raises:
            ExperimentError: the path that does, or that cannot be read.
        """
        try:
            found = outsider(self.directory, deep=deep)
        except OSError as error:
            raise ExperimentError(f"cannot look into {error.filename}: {error.strerror}") from error
        if found is not None:
            raise ExperimentError(
                f"{found}; an experiment has only its own files and directories: put what is meant in its place, or "
                "remove it"
            )

    def is_running(self) -> bool:
        """Whether a live process has the directory.

        Looking keeps a run from starting at that very moment, so it is for those that need to know.

        Raises:
            OSError: the lock cannot be looked at.
        """
        return is_locked(self.directory / LOCK) or (self.remote is not None and self.remote.is_running())

    # -- what is written at the start of a run ----------------------------------------------------------------------

    def write_start(
        self,
        *,
        config: Config | None,
        sources: list[Path],
        devices: list[str],
        run_id: str | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the config, copies of the sources and the environment of a run that starts or continues.

        Args:
            config: of the run, if it has one.
            sources: files and packages to keep a copy of.
            devices: by name.
            run_id: of the run, where environment.json does not have one; a new one if None.
            origin: what environment.json is to hold besides, see `Trainer._origin`.

        Raises:
            ExperimentError: a file cannot be written.
        """
        from prototrain.experiment.copies import copy_source  # only when a run starts
        from prototrain.experiment.facts import describe_environment

        try:
            if config is not None:
                config.save(self.directory)
            for source in sources:
                copy_source(source, self.directory / "source")
            environment = {**describe_environment(devices), **(origin or {})}
            environment["run_id"] = self.run_id or run_id or uuid.uuid4().hex
            write_atomic(self.environment, json.dumps(environment, indent=2) + "\n")
        except OSError as error:
            raise ExperimentError(f"cannot write to the experiment directory {self}: {error.strerror}") from error

    # -- starting afresh --------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether there is anything in the directory that a fresh start would delete."""
        return self.directory.is_dir() and any(path.name not in (LOCK, ".token") for path in self.directory.iterdir())

    def check_deletable(self) -> None:
        """Check that there is nothing in the directory, or an experiment.

        Raises:
            ExperimentError: it is not an experiment's directory.
        """
        if not self.exists():
            return
        names = [path.name for path in self.directory.iterdir()]
        names += [] if self.remote is None else self.remote.top()
        foreign = sorted(name for name in names if not is_own(name))
        is_experiment = any((self.directory / name).is_file() for name in MARKS)
        if self.directory.is_symlink() or foreign or not is_experiment:
            found = f"it holds {foreign[0]!r}" if foreign else "it is a link or has no environment.json"
            raise ExperimentError(f"{self} does not look like an experiment ({found}); nothing was deleted")

    def delete(self) -> None:
        """Delete everything in the directory.

        Raises:
            ExperimentError: it is not an experiment's directory, another run has it, or a file cannot be deleted.
        """
        self.fetch()
        self.check_deletable()
        if not self.exists():
            return
        self.check_inside()
        self._lock.take()
        if self.remote is not None:
            self.remote.open(to_clear=True)
        try:
            # What tells that it is an experiment goes last: a deletion that is cut short can be done again.
            for path in sorted(self.directory.iterdir(), key=lambda path: path.name in MARKS):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != LOCK:
                    path.unlink()
            if self.remote is not None:
                self.remote.clear()
        except OSError as error:
            raise ExperimentError(f"cannot delete everything in {self}: {error.strerror}: {error.filename}") from error


def _remote(directory: PathLike) -> Remote | None:
    """The storage at a URL, or at the URL that a local directory is the copy of."""
    url = url_of(directory)
    if url is None and MIRRORS not in local_path(directory).parts:
        return None
    from prototrain.experiment.mirror import url_of_copy  # only for an experiment at a URL
    from prototrain.experiment.remote import Remote

    url = url or url_of_copy(local_path(directory))
    return None if url is None else Remote(url)
