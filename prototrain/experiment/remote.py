"""An experiment at a URL. A run works in a local copy, and a thread uploads its files.

A run takes the lease, downloads the files that it continues from, and uploads each checkpoint when it is finished and
the other files at intervals. If the storage fails or hangs, training continues and the upload is tried again.
"""

from __future__ import annotations

import fcntl
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from prototrain.errors import ExperimentError, StorageError
from prototrain.experiment import lock
from prototrain.experiment.lock import LEASE, LOCK, Lease, is_locked
from prototrain.experiment.mirror import Mirror, local_copy
from prototrain.system.files import PathLike, local_path, url_of
from prototrain.system.storage import Storage, downloaded
from prototrain.system.terminal import announcing, say

UPLOAD_SECONDS = 30.0
RETRY_SECONDS = 10.0
LAST_SECONDS = 60.0  # how long a failed upload is tried again at the end of a run
_CHECKPOINT = re.compile(r"(.+)/(checkpoints/[^/]+(?:/[^/]+)?)")
_WEIGHTS = (".h5", ".hdf5", ".keras", ".npy", ".npz")

Say = Callable[[str], object]


class Remote:
    """The experiment at one URL, as this process sees it. `directory` is the local copy."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.storage = Storage(url)
        self.directory = local_copy(url)
        self._mirror = Mirror(self.storage, self.directory)
        self._uploading = threading.Lock()
        self._lease = Lease(self.storage)
        self._is_open = False
        self._lost: ExperimentError | None = None

    def __str__(self) -> str:
        return self.url

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Prevent other processes on this machine from changing the local copy."""
        path = self._mirror.note.with_suffix(".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._mirror.recall()
                yield
        except OSError as error:
            why = f"{error.strerror}; PROTOTRAIN_CACHE names another place for it"
            raise StorageError(f"cannot keep a copy of {self} in {self.directory}: {why}") from error

    # -- for commands that read ---------------------------------------------------------------------------------------

    def fetch(self, *, whole: bool = False) -> None:
        """Update the local copy, unless a run on this machine is working in it or was the last one at the URL.

        Complete checkpoints are downloaded if `whole`, otherwise only their meta.json.
        """
        if self._is_open or is_locked(self.directory / LOCK):
            return
        with self._alone(), announcing(f"reading from {self}", partial(say, to_stderr=True)):
            last = self._lease.last()
            if last is None or last.copy != self._mirror.copy:
                self._mirror.download(whole=whole)

    def is_running(self) -> bool:
        """Return whether a run seems to be active."""
        return self._is_open or self._lease.is_held()

    def top(self) -> list[str]:
        """Return the names directly below the URL, without the lease."""
        return sorted({name.partition("/")[0] for name in self.storage.listing()} - {LEASE})

    def keep(self) -> None:
        """Upload files that were written into the local copy outside of a run. An active run uploads them itself."""
        if not is_locked(self.directory / LOCK):
            with self._alone(), announcing(f"uploading to {self}"):
                self._mirror.upload()

    # -- for a run ----------------------------------------------------------------------------------------------------

    def open(self, announce: Say = print, *, to_clear: bool = False) -> str | None:
        """Take the lease and update the local copy, which this process has locked, unless it is going to be cleared.

        Returns a line of text if a run died with the lease, else None.
        """
        if self._is_open:
            return None
        with self._alone():
            self._lease, self._lost = Lease(self.storage), None
            self._ending, self._woken = threading.Event(), threading.Event()
            self._threads: list[threading.Thread] = []
            last = self._lease.take(self._mirror.copy, announce)
            self._start(self._beat)
            try:
                if not to_clear and (last is None or last.copy != self._mirror.copy):
                    with announcing(f"downloading what the run continues from, {self}", announce):
                        self.storage.delete(self._mirror.download(whole=True))
                self._mirror.remember()
                # Only at the end: if this process is killed earlier, the next one downloads everything again.
                self._lease.beat(copy=self._mirror.copy)
            except BaseException:
                self._stop()
                self._lease.beat(held=False)
                raise
        self._is_open = True
        return f"took over the lease of {last}, which ended without giving it back" if last and last.held else None

    def clear(self) -> None:
        """Delete everything at the URL except the lease."""
        with self._uploading:
            self._mirror.clear()

    def begin(self, announce: Say) -> None:
        """Upload the existing files before the first step, and start the thread that uploads changes."""
        if self._is_open:
            with announcing(f"uploading the beginning of the run to {self}", announce):
                self._upload()
            self._start(lambda: self._upload_changes(announce))

    def wake(self) -> None:
        """Make the thread upload changes now. May be called in any thread."""
        self._woken.set()

    def check(self) -> None:
        """Raise an `ExperimentError` if another run had taken over by the last heartbeat."""
        if self._lost is not None:
            raise self._lost

    def finish(self, announce: Say, *, patience: float | None = None) -> None:
        """Upload all remaining changes, and try again for `patience` seconds (or `LAST_SECONDS`) if that fails.

        Raises:
            ExperimentError: another run has taken over.
            StorageError: the upload still fails after that time.
        """
        end = time.monotonic() + (LAST_SECONDS if patience is None else patience)
        while self._is_open:
            self.check()
            try:
                with announcing(f"uploading what is left to {self}", announce):
                    while self._upload():
                        pass
                return
            except StorageError as error:
                if time.monotonic() + RETRY_SECONDS > end:
                    cure = "the same command on this machine uploads it once the storage answers"
                    raise StorageError(f"{error}; the whole run is in {self.directory}: {cure}") from error
                announce(f"WARNING: {error}; trying again for {end - time.monotonic():.0f} s")
                time.sleep(RETRY_SECONDS)

    def close(self, announce: Say) -> None:
        """Release the lease. Changes that are not uploaded yet stay local."""
        if self._is_open:
            self._stop()
            self._is_open = False
            try:
                if self._lost is None:
                    self._lease.beat(held=False)
            except (StorageError, ExperimentError) as error:
                announce(f"WARNING: {error}; other machines have to wait until the lease has expired")

    # -- threads ------------------------------------------------------------------------------------------------------

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, name="upload", daemon=True))
        self._threads[-1].start()

    def _stop(self) -> None:
        self._ending.set()
        self._woken.set()
        for thread in self._threads:
            thread.join(lock.LOOK_SECONDS)  # a thread whose storage hangs is left behind

    def _upload(self) -> bool:
        """Upload changes; returns whether more remain."""
        with self._uploading:
            try:
                self._lease.check()
                return self._mirror.upload(self._lease.check)
            except ExperimentError as error:
                self._lost = error
                raise
            except OSError as error:
                raise StorageError(f"cannot copy {error.filename}: {error.strerror}") from error

    def _beat(self) -> None:
        while not self._ending.wait(lock.BEAT_SECONDS) and self._lost is None:
            try:
                self._lease.beat()
            except ExperimentError as error:
                self._lost = error
            except StorageError:
                pass  # the upload thread reports it

    def _upload_changes(self, announce: Say) -> None:
        is_failing = False
        while not self._ending.is_set():
            self._woken.wait(UPLOAD_SECONDS)
            self._woken.clear()
            try:
                while not self._ending.is_set() and self._upload():
                    pass
                if is_failing and not self._ending.is_set():
                    announce(f"uploads to {self} work again, nothing is missing")
                is_failing = False
            except ExperimentError:
                return  # `check` raises it
            except StorageError as error:
                if not is_failing:
                    announce(f"WARNING: {error}; training continues, and the upload is tried again")
                is_failing = True


def fetched(path: PathLike) -> Path:
    """Return the local path of an experiment, a checkpoint in it or a file of weights; a copy of a URL is updated."""
    url = url_of(path)
    if url is None:
        return local_path(path)
    if url.endswith(_WEIGHTS):
        return downloaded(url)
    inside = _CHECKPOINT.fullmatch(url)
    remote = Remote(inside[1] if inside else url)
    remote.fetch(whole=True)
    return remote.directory / inside[2] if inside else remote.directory


def experiments_below(url: str) -> list[Path]:
    """Return the directories of the local copies of the experiments at and below a URL, sorted by name."""
    paths = [local_copy(url) / name for name in Storage(url).listing()]
    return sorted(path.parent for path in paths if path.name == "environment.json")
