"""The experiment directory: its paths, its lock, the files that a run writes at its start, and its deletion."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prototrain.errors import ExperimentError
from prototrain.experiment.facts import describe_environment
from prototrain.experiment.lock import LOCK, DirectoryLock, is_locked
from prototrain.system.files import PathLike, joined, local_path, python_files, require_literal, url_of, write_atomic

if TYPE_CHECKING:
    from prototrain.config import Config
    from prototrain.experiment.remote import Remote

RECORD = "run.json"
_OWN_NAMES = {
    "config.json", "config.txt", "source", "environment.json", "checkpoints", "summaries", "metrics.jsonl",
    "metrics.superseded.jsonl", "train.log", LOCK, "analysis", "exported", "hyper.txt", RECORD,
    "report.html", ".token",
}  # fmt: skip
STEP = re.compile(r"step-(\d{10,})")  # the pattern of the name of a checkpoint's directory
MIRRORS = "mirrors"  # the cache directory for the local copies of experiments at URLs
META = "meta.json"  # the file of a checkpoint that lists its other files with checksums
MARKS = ("config.json", "environment.json")  # files that identify an experiment directory
STARTED = "PROTOTRAIN_STARTED"  # environment variable: the start time of the run, which all workers share
VERIFY = "PROTOTRAIN_VERIFY"  # environment variable: the record directory of `prototrain verify`
_redirected: dict[str, int] = {}  # numbers of the experiments under `prototrain verify`


class Experiment:
    """The paths and the lock of one experiment. Creating the object touches no file.

    Args:
        directory: the directory or URL for the files of the run. The directory is created when the run starts. For a
            URL, the attribute `directory` is the local copy.

    Attributes:
        remote: the experiment at the URL; None for a local directory.

    Raises:
        StorageError: the URL has an unknown scheme, or the library for it is not installed.
    """

    def __init__(self, directory: PathLike) -> None:
        self.remote = _remote(directory)
        self.directory = local_path(directory) if self.remote is None else self.remote.directory
        self.checkpoints = self.directory / "checkpoints"
        self.summaries = self.directory / "summaries"
        self.metrics = self.directory / "metrics.jsonl"
        self.log = self.directory / "train.log"
        self.environment = self.directory / "environment.json"
        self.record = self.directory / RECORD
        self.token = self.directory / ".token"
        self._lock = DirectoryLock(self.directory, name=str(self))

    @classmethod
    def from_config(cls, config: Config) -> Experiment:
        """Return the experiment that a config names. ``{timestamp}`` in the name becomes the local start time."""
        started = os.environ.get(STARTED) or time.strftime("%Y%m%d-%H%M%S")
        name = config["trainer.experiment_name"].replace("{timestamp}", started)
        return cls.of_run(joined(config["trainer.experiment_base_dir"], name))

    @classmethod
    def of_run(cls, directory: PathLike) -> Experiment:
        """Return the experiment of a run in this process. `prototrain verify` redirects it to its record directory."""
        record = os.environ.get(VERIFY)
        if record is None or str(directory).startswith(record):
            return cls(directory)
        # Numbered in the order of first use, because a name may contain the time or a process id.
        number = _redirected.setdefault(str(directory), len(_redirected) + 1)
        return cls(os.path.join(record, "experiments", str(number)))

    def __str__(self) -> str:
        return str(self.directory if self.remote is None else self.remote)

    def shown(self, path: Path) -> str:
        """Return a path in the directory as users know it: as a URL if the experiment has one."""
        return str(path) if self.remote is None else f"{self.remote}/{path.relative_to(self.directory).as_posix()}"

    @property
    def run_id(self) -> str | None:
        """The identifier of the run, which a moved or copied directory keeps; None if there is none."""
        try:
            found = json.loads(self.environment.read_text(encoding="utf-8"))["run_id"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return found if isinstance(found, str) else None

    def lock(self, announce: Callable[[str], object] = print) -> str | None:
        """Create the directory if needed and lock it for this process. The lock is released when the process ends.

        Returns:
            a line of text if a run died with the lock or the file system has no locks, else None.

        Raises:
            ExperimentError: another run holds the lock, the directory cannot be created or written, or its name has a
                character of a pattern.
            StorageError: the storage at a URL cannot be read or written.
        """
        require_literal(self.directory)  # before the run: its checkpoints could not be read
        died = self._lock.take()
        if self.remote is not None:
            try:
                died = self.remote.open(announce) or died
            except BaseException:
                self._lock.release()
                raise
        return died

    def unlock(self, announce: Callable[[str], object] = print, *, refused: bool = False) -> None:
        """Release the lock. If the run was refused, an experiment that it has created is deleted, while it is empty."""
        try:
            if self.remote is not None:
                self.remote.close(announce)
        finally:
            self._lock.release(refused=refused)

    def fetch(self, *, whole: bool = False) -> None:
        """Update the local copy of an experiment at a URL before reading it; see `Remote.fetch`."""
        if self.remote is not None:
            self.remote.fetch(whole=whole)

    def keep(self, path: Path) -> str:
        """Upload the files that a command added to the local copy of a URL; returns the path as users know it."""
        if self.remote is not None:
            self.remote.keep()
        return self.shown(path)

    def is_gone(self) -> bool:
        """Return whether the directory was deleted, moved or replaced since this process locked it."""
        with suppress(OSError):  # unknown, for example because a network does not answer
            # If only the lock file was deleted, nothing is lost.
            return self._lock.is_lost() and ((self.directory / LOCK).exists() or not self.environment.exists())
        return False

    def check_free(self) -> None:
        """Raise an `ExperimentError` if another run holds the lock, or the directory cannot be read."""
        try:
            self._lock.check_free()
        except OSError as error:
            raise ExperimentError(f"cannot use {error.filename}: {error.strerror}") from error

    def is_running(self) -> bool:
        """Return whether a live process holds the lock; see `is_locked`."""
        return is_locked(self.directory / LOCK) or (self.remote is not None and self.remote.is_running())

    def write_start(
        self,
        *,
        config: Config | None,
        sources: list[Path],
        run_id: str | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the config, copies of the sources, and the environment when a run starts or continues.

        Args:
            config: the config of the run, if it has one.
            sources: files and packages to copy.
            run_id: the identifier of the run if environment.json has none; by default a new one.
            origin: further entries of environment.json; see `Trainer._origin`.

        Raises:
            ExperimentError: a file cannot be written.
        """
        try:
            if config is not None:
                config.save(self.directory)
            for source in sources:
                _copy_source(source, self.directory / "source")
            environment = {**describe_environment(), **(origin or {})}
            environment["run_id"] = self.run_id or run_id or uuid.uuid4().hex
            write_atomic(self.environment, json.dumps(environment, indent=2) + "\n")
        except OSError as error:
            raise ExperimentError(f"cannot write to the experiment directory {self}: {error.strerror}") from error

    def exists(self) -> bool:
        """Return whether the directory has anything that a fresh start would delete."""
        return self.directory.is_dir() and any(path.name not in (LOCK, ".token") for path in self.directory.iterdir())

    def check_deletable(self) -> None:
        """Raise an `ExperimentError` if the directory is neither empty nor an experiment."""
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
            ExperimentError: it is not an experiment, another run holds the lock, or a file cannot be deleted.
        """
        self.fetch()
        self.check_deletable()
        if not self.exists():
            return
        self._lock.take()
        if self.remote is not None:
            self.remote.open(to_clear=True)
        try:
            # The files that identify an experiment go last, so that an interrupted deletion can be repeated.
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
    """Return the remote of a URL or of the local copy of a URL; None for any other directory."""
    url = url_of(directory)
    if url is None and MIRRORS not in local_path(directory).parts:
        return None
    from prototrain.experiment.remote import Remote, url_of_copy  # only for an experiment at a URL

    url = url or url_of_copy(local_path(directory))
    return None if url is None else Remote(url)


def checkpoint_steps(directory: Path) -> list[int]:
    """Return the sorted steps of the checkpoints in a directory, verified or not; [] if there is no directory."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in map(STEP.fullmatch, names) if match)


def is_own(name: str) -> bool:
    """Return whether a run creates files of this name, such as superseded checkpoints and temporary files."""
    return name in _OWN_NAMES or name.startswith(("checkpoints.superseded", ".tmp-"))


def _copy_source(source: Path, target: Path) -> None:
    """Copy a Python file, or the Python files in a package's directory. Each copy is written atomically."""
    for file in python_files(source):
        copy = target / file.relative_to(source.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(copy, file.read_bytes())
