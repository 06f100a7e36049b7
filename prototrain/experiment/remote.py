"""An experiment at a URL. A run works in the local copy of it, and a thread uploads what the run makes.

A run takes the lease, downloads what it continues from, and uploads checkpoints as they are finished and other files at
intervals. If the storage fails or hangs, training continues and the upload is tried again.
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
from prototrain.experiment import lease
from prototrain.experiment.lock import LOCK, is_locked
from prototrain.experiment.mirror import Mirror, local_copy, step_of
from prototrain.system.storage import Storage, downloaded
from prototrain.system.terminal import say
from prototrain.system.urls import PathLike, local_path, url_of
from prototrain.system.waiting import announcing

UPLOAD_SECONDS = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
LAST_SECONDS = 60.0
"""How long the end of a run tries again while the storage fails."""
_SHARE = 10  # uploads at intervals take at most a tenth of the time
_CHECKPOINT = re.compile(r"(.+)(/checkpoints/[^/]+(?:/[^/]+)?)")
_WEIGHTS = (".h5", ".hdf5", ".keras", ".npy", ".npz")

Say = Callable[[str], object]


class Remote:
    """The experiment at one URL, from the side of this process; `directory` is the local copy."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.storage = Storage(url)
        self.directory = local_copy(url)
        self._mirror = Mirror(self.storage, self.directory)
        self._uploading = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._lease = lease.Lease(self.storage)
        self._is_open = False
        self._lost: ExperimentError | None = None
        self._ending, self._woken = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []

    def __str__(self) -> str:
        return self.url

    # -- for commands that read ---------------------------------------------------------------------------------------

    def fetch(self, *, whole: bool = False) -> None:
        """Update the local copy, unless a run on this machine works in it or was the last one.

        Checkpoints are downloaded only if it is to be `whole`; else only their meta.json.

        Raises:
            StorageError: the storage fails.
            ExperimentError: the URL is not that of an experiment.
        """
        to_stderr = partial(say, to_stderr=True)
        with self._alone(), announcing(f"reading from {self}", to_stderr):
            if not self._is_open and not is_locked(self.directory / LOCK):
                self._mirror.recall()
                if not self._is_newest(self._lease.last()):
                    self._mirror.download(to_stderr, whole=whole)

    def is_running(self) -> bool:
        """Whether a run seems to be under way."""
        return self._is_open or self._lease.seems_held()

    def top(self) -> list[str]:
        """The names right below the URL, without the lease."""
        return sorted({name.partition("/")[0] for name in self.storage.listing()} - {lease.LEASE})

    def keep(self) -> None:
        """Upload what was written into the local copy outside of a run; a run that works in it uploads it itself."""
        with self._alone(), announcing(f"uploading to {self}"):
            if not is_locked(self.directory / LOCK):
                self._mirror.recall()
                self._mirror.upload()

    def _is_newest(self, last: lease.Holder | None) -> bool:
        return last is not None and last.copy == self._mirror.copy

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes of this machine from changing the local copy."""
        path = self._mirror.note.with_suffix(".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise StorageError(
                f"cannot keep a copy of {self} in {self.directory}: {error.strerror}; PROTOTRAIN_CACHE names another "
                "place for it"
            ) from error

    # -- for a run ----------------------------------------------------------------------------------------------------

    def open(self, announce: Say = print, *, to_clear: bool = False) -> str | None:
        """Take the lease and update the local copy, whose lock this process has, unless it is `to_clear`.

        Returns:
            a line about a run that died with the lease, or None.

        Raises:
            ExperimentError: another run has the lease, or the URL is not that of an experiment.
            StorageError: the storage fails.
        """
        if self._is_open:
            return None
        with self._alone():
            self._reset()
            self._mirror.recall()
            last = self._lease.take(self._mirror.copy, announce)
            self._start(self._beat)
            try:
                if not to_clear and not self._is_newest(last):
                    with announcing(f"downloading what the run continues from, {self}", announce):
                        self._download(announce)
                self._mirror.remember()
                # Only now: if this process is killed before, the next one downloads everything again.
                self._lease.beat(copy=self._mirror.copy)
            except BaseException:
                self._stop()
                self._lease.beat(held=False)
                raise
        self._is_open = True
        return f"took over the lease of {last}, which ended without giving it back" if last and last.held else None

    def _download(self, announce: Say) -> None:
        cut = self._mirror.download(announce, whole=True)
        for step in sorted({step_of(name) or 0 for name in cut}):
            announce(
                f"{self} has only parts of the checkpoint of step {step}, whose upload was cut short; they are deleted"
            )
        self.storage.delete(cut)

    def clear(self) -> None:
        """Delete everything at the URL but the lease."""
        with self._uploading:
            self._mirror.clear()

    def begin(self, announce: Say) -> None:
        """Upload what there is before the first step, and from then on in a thread, which may `announce` lines of text.

        Raises:
            StorageError: the storage fails.
        """
        if self._is_open:
            with announcing(f"uploading the beginning of the run to {self}", announce):
                self._upload()
            self._start(lambda: self._upload_changes(announce))

    def wake(self) -> None:
        """Have the thread upload what is new; may be called in any thread."""
        self._woken.set()

    def check(self) -> None:
        """Raise an `ExperimentError` if another run has taken over, as of the last sign of life."""
        if self._lost is not None:
            raise self._lost

    def finish(self, announce: Say, *, patience: float | None = None) -> None:
        """Upload all that is left, and wait for it.

        Args:
            announce: called with a line of text.
            patience: for how many seconds a failed upload is tried again; `LAST_SECONDS` if None.

        Raises:
            StorageError: it has failed for so long; the message names the local copy.
            ExperimentError: another run has taken over.
        """
        if not self._is_open:
            return
        end, pause = time.monotonic() + (LAST_SECONDS if patience is None else patience), FIRST_PAUSE
        while True:
            self.check()
            try:
                with announcing(f"uploading what is left to {self}", announce):
                    while self._upload():
                        pass
                return
            except StorageError as error:
                if time.monotonic() + pause > end:
                    raise StorageError(
                        f"{error}; everything of the run lies whole in {self.directory}: the same "
                        "command on this machine uploads it once the storage answers"
                    ) from error
                announce(f"WARNING: {error}; trying again for {end - time.monotonic():.0f} s")
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def close(self, announce: Say) -> None:
        """Give the lease back; what is not uploaded by now is not uploaded."""
        if not self._is_open:
            return
        self._stop()
        self._is_open = False
        if self._lost is None:
            try:
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
            thread.join(lease.LOOK_SECONDS)  # one that waits for a storage that hangs is left behind

    def _upload(self) -> bool:
        """Upload what is new; returns whether there is more."""
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
        while not self._ending.wait(lease.BEAT_SECONDS) and self._lost is None:
            try:
                self._lease.beat()
            except ExperimentError as error:
                self._lost = error
            except StorageError:
                pass  # the thread that uploads reports it

    def _upload_changes(self, announce: Say) -> None:
        wait, pause = UPLOAD_SECONDS, 0.0  # a pause, in seconds, follows a failure
        while True:
            (self._ending if pause else self._woken).wait(pause or wait)
            if self._ending.is_set() or self._lost is not None:
                return
            self._woken.clear()
            began = time.monotonic()
            try:
                if self._upload():
                    self._woken.set()
            except ExperimentError:
                return  # `check` raises it
            except StorageError as error:
                if not pause:
                    announce(f"WARNING: {error}; training continues, and the upload is tried again")
                pause = min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE)
                continue
            if pause:
                announce(f"uploads to {self} work again, nothing is missing")
            wait, pause = max(UPLOAD_SECONDS, _SHARE * (time.monotonic() - began)), 0.0


def fetched(path: PathLike) -> Path:
    """A path on this machine; for a URL that of the local copy, which is updated first.

    Args:
        path: of an experiment, a checkpoint in it, or a file with weights.

    Raises:
        StorageError: the storage fails, or has no such file.
    """
    url = url_of(path)
    if url is None:
        return local_path(path)
    if url.endswith(_WEIGHTS):
        return downloaded(url)
    inside = _CHECKPOINT.fullmatch(url)
    remote = Remote(inside[1] if inside else url)
    remote.fetch(whole=True)
    return remote.directory / inside[2].lstrip("/") if inside else remote.directory


def experiments_below(url: str) -> list[Path]:
    """The local copies of the experiments at and below a URL, in the order of their names.

    Raises:
        StorageError: the storage fails.
    """
    found = [name.rpartition("/") for name in Storage(url).listing()]
    folders = sorted(folder for folder, _, last in found if last == "environment.json")
    return [
        local_copy(url) / folder
        for folder in folders
        if not any(folder != other and f"{folder}/".startswith(f"{other}/".lstrip("/")) for other in folders)
    ]
