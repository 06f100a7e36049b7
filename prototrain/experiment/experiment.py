"""The experiment directory: where everything of a run lies, and a lock that keeps two runs out of one directory."""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import IO, Any

from prototrain.config import Config
from prototrain.errors import ExperimentError
from prototrain.system.files import write_atomic

_OWN_NAMES = {
    "config.json", "config.txt", "source", "environment.json", "checkpoints", "summaries", "metrics.jsonl",
    "metrics.superseded.jsonl", "train.log", ".lock", "analysis", "exported", "hyper.txt", "run.json", "report.html",
}  # fmt: skip
_MARKS = ("config.json", "environment.json")
STEP = re.compile(r"step-(\d{10,})")
"""The name of a checkpoint's directory."""
_PACKAGES = ("prototrain", "tensorflow", "keras", "numpy")


class Experiment:
    """Paths below one experiment directory. Creating the object touches no file.

    Args:
        directory: where the run's files go; made when the run starts.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.checkpoints = self.directory / "checkpoints"
        self.summaries = self.directory / "summaries"
        self.metrics = self.directory / "metrics.jsonl"
        self.log = self.directory / "train.log"
        self._lock: IO[str] | None = None

    @classmethod
    def from_config(cls, config: Config) -> Experiment:
        """The directory that a config names; ``{timestamp}`` in the name becomes the present local time."""
        name = config["trainer.experiment_name"].replace("{timestamp}", time.strftime("%Y%m%d-%H%M%S"))
        return cls(Path(config["trainer.experiment_base_dir"]) / name)

    def __str__(self) -> str:
        return str(self.directory)

    @property
    def environment(self) -> Path:
        return self.directory / "environment.json"

    @property
    def record(self) -> Path:
        return self.directory / "run.json"

    @property
    def run_id(self) -> str | None:
        """What tells this run from any other, given when its directory was made; moving or copying keeps it."""
        try:
            found = json.loads(self.environment.read_text(encoding="utf-8"))["run_id"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return found if isinstance(found, str) else None

    # -- the lock ---------------------------------------------------------------------------------------------------

    def lock(self) -> str | None:
        """Make the directory if need be and take it for this process.

        The operating system gives the lock back when the process ends, however it ends.

        Returns:
            a line about a run that died with the lock, or None.

        Raises:
            ExperimentError: another run has the directory, or it cannot be made or written.
        """
        if self._lock is not None:
            return None
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            file = open(self.directory / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 - held while the run lasts
        except OSError as error:
            raise ExperimentError(f"cannot use the experiment directory {self}: {error.strerror}") from error
        file.seek(0)
        holder, _, inode = file.read().strip().partition("\n")
        own_inode = str(os.fstat(file.fileno()).st_ino)
        try:
            _take(file, self, holder)
        except ExperimentError:
            file.close()
            raise
        self._lock = file
        with suppress(OSError):  # who holds it is only for messages; a full disk has no room for that
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}\n{own_inode}\n")
            file.flush()
        # In a copy of a run's directory, what the lock says is about the original.
        stale = holder and inode == own_inode
        return f"took over the lock of {holder}, which ended without giving it back" if stale else None

    def unlock(self) -> None:
        """Give the directory back."""
        if self._lock is not None:
            with suppress(OSError), self._lock:
                self._lock.truncate(0)
            self._lock = None

    def check_free(self) -> None:
        """Fail early if another run has the directory.

        Raises:
            ExperimentError: another run has it.
        """
        path = self.directory / ".lock"
        if self._lock is None and path.is_file():
            with open(path, encoding="utf-8") as file:
                _take(file, self, file.read().partition("\n")[0])

    def is_running(self) -> bool:
        """Whether a live process has the directory.

        Looking keeps a run from starting at that very moment, so it is for those that need to know.

        Raises:
            OSError: the lock cannot be looked at.
        """
        try:
            with open(self.directory / ".lock", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    # -- what is written at the start of a run ----------------------------------------------------------------------

    def write_start(
        self,
        *,
        config: Config | None,
        sources: list[Path],
        devices: list[str],
        run_id: str | None = None,
        origin: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Write config, source snapshot and environment of a run that starts or goes on.

        Args:
            config: of the run, if it has one.
            sources: files and packages to keep a copy of.
            devices: by name.
            run_id: of the run, where environment.json does not say it; a new one if None.
            origin: what environment.json is to hold besides, see `TrainerServices.origin`.

        Raises:
            ExperimentError: a file cannot be written.
        """
        try:
            if config is not None:
                config.save(self.directory)
            for source in sources:
                _copy_source(source, self.directory / "source")
            environment = {**describe_environment(devices), **origin}
            environment["run_id"] = self.run_id or run_id or uuid.uuid4().hex
            write_atomic(self.environment, json.dumps(environment, indent=2) + "\n")
        except OSError as error:
            raise ExperimentError(f"cannot write to the experiment directory {self}: {error.strerror}") from error

    # -- starting afresh --------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether there is anything in the directory that a fresh start would delete."""
        return self.directory.is_dir() and any(path.name != ".lock" for path in self.directory.iterdir())

    def check_deletable(self) -> None:
        """Check that there is nothing in the directory, or an experiment.

        Raises:
            ExperimentError: it is not an experiment's directory.
        """
        if not self.exists():
            return
        foreign = sorted(path.name for path in self.directory.iterdir() if not _is_own(path.name))
        is_experiment = any((self.directory / name).is_file() for name in _MARKS)
        if self.directory.is_symlink() or foreign or not is_experiment:
            found = f"it holds {foreign[0]!r}" if foreign else "it is a link or has no environment.json"
            raise ExperimentError(f"{self} does not look like an experiment ({found}); nothing was deleted")

    def delete(self) -> None:
        """Delete everything in the directory.

        Raises:
            ExperimentError: it is not an experiment's directory, another run has it, or a file cannot be deleted.
        """
        self.check_deletable()
        if not self.exists():
            return
        self.lock()
        try:
            # What tells that it is an experiment goes last: a deletion that is cut short can be done again.
            for path in sorted(self.directory.iterdir(), key=lambda path: path.name in _MARKS):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != ".lock":
                    path.unlink()
        except OSError as error:
            raise ExperimentError(f"cannot delete everything in {self}: {error.strerror}: {error.filename}") from error


def _is_own(name: str) -> bool:
    """Whether a run makes files of this name: its own, checkpoints set aside, and what a killed write has left."""
    return name in _OWN_NAMES or name.startswith(("checkpoints.superseded-", ".tmp-"))


def _take(file: IO[str], experiment: Experiment, holder: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ExperimentError(
            f"{experiment} is in use by another run ({holder or 'unknown process'}); "
            "wait for it, stop it, or choose another trainer.experiment_name"
        ) from error


def checkpoint_steps(directory: Path) -> list[int]:
    """The steps that a directory has checkpoints of, verified or not, in ascending order; none if it is not there.

    Raises:
        OSError: it cannot be read.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in map(STEP.fullmatch, names) if match)


def describe_environment(devices: list[str]) -> dict[str, Any]:
    """Versions, command line, git commit and devices of this process."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed as a package"
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "directory": os.getcwd(),
        "host": platform.node(),
        "platform": platform.platform(),
        "git_commit": _git_commit(),
        "versions": versions,
        "devices": devices,
    }


def source_of(thing: object) -> Path | None:
    """The package directory or the file that a module, or an object's class, was written in: the text that is run."""
    module = thing if isinstance(thing, ModuleType) else inspect.getmodule(type(thing))
    return _package_or_file(module, getattr(module, "__source__", None) or getattr(module, "__file__", None))


def home_of(module: ModuleType | None) -> Path | None:
    """Where a module's package or file lies; or lay, if what is run is the copy that a run has kept of it."""
    return _package_or_file(module, getattr(module, "__file__", None))


def _package_or_file(module: ModuleType | None, file: str | None) -> Path | None:
    if file is None:  # a package without an __init__.py has only its directory
        return next(map(Path, getattr(module, "__path__", ())), None)
    return Path(file).parent if Path(file).name == "__init__.py" else Path(file)


def _copy_source(source: Path, target: Path) -> None:
    """Copy a package's or a script's Python files to `target`, whole or not at all; data files stay where they are."""
    files = [source] if source.is_file() else sorted(source.rglob("*.py"))
    for file in files:
        copy = target / source.name / file.relative_to(source) if source.is_dir() else target / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(copy, file.read_bytes())


def _git_commit() -> str | None:
    """The commit of the working directory, with "+changes" where files differ from it; None outside of git."""
    try:
        commit = _git("rev-parse", "HEAD")
        return commit + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
