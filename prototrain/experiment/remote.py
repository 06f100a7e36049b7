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
_CHECKPOINT = re.compile(r"(.+)/(checkpoints/[^/]+(?:/[^/]+)?)")
_MARK = re.compile(r"(^|/)environment\.json$")
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
        self._lease = lease.Lease(self.storage)
        self._is_open = False
        self._lost: ExperimentError | None = None

    def __str__(self) -> str:
        return self.url

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes of this machine from changing the local copy."""
        path = self._mirror.note.with_suffix(".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._mirror.recall()
                yield
        except OSError as error:
            raise StorageError(
                f"cannot keep a copy of {self} in {self.directory}: {error.strerror}; PROTOTRAIN_CACHE names another "
                "place for it"
            ) from error

    # -- for commands that read ---------------------------------------------------------------------------------------

    def fetch(self, *, whole: bool = False) -> None:
        """Update the local copy, unless a run on this machine works in it or was the last one.

        Checkpoints are downloaded only if it is to be `whole`; else only their meta.json.
        """
        if self._is_open or is_locked(self.directory / LOCK):
            return
        with self._alone(), announcing(f"reading from {self}", partial(say, to_stderr=True)):
            last = self._lease.last()
            if last is None or last.copy != self._mirror.copy:
                self._mirror.download(whole=whole)

    def is_running(self) -> bool:
        """Whether a run seems to be active."""
        return self._is_open or self._lease.seems_held()

    def top(self) -> list[str]:
        """The names right below the URL, without the lease."""
        return sorted({name.partition("/")[0] for name in self.storage.listing()} - {lease.LEASE})

    def keep(self) -> None:
        """Upload what was written into the local copy outside of a run; a run that works in it uploads it itself."""
        if not is_locked(self.directory / LOCK):
            with self._alone(), announcing(f"uploading to {self}"):
                self._mirror.upload()

    # -- for a run ----------------------------------------------------------------------------------------------------

    def open(self, announce: Say = print, *, to_clear: bool = False) -> str | None:
        """Take the lease and update the local copy, whose lock this process has, unless it is `to_clear`.

        Returns:
            a line about a run that died with the lease, or None.
        """
        if self._is_open:
            return None
        with self._alone():
            self._lease, self._lost = lease.Lease(self.storage), None
            self._ending, self._woken = threading.Event(), threading.Event()
            self._threads: list[threading.Thread] = []
            last = self._lease.take(self._mirror.copy, announce)
            self._start(self._beat)
            try:
                if not to_clear and (last is None or last.copy != self._mirror.copy):
                    with announcing(f"downloading what the run continues from, {self}", announce):
                        cut = self._mirror.download(whole=True)
                        self.storage.delete(cut)
                    for step in sorted({step_of(name) or 0 for name in cut}):
                        announce(
                            f"deleted parts of the checkpoint of step {step} at {self}, whose upload was cut short"
                        )
                self._mirror.remember()
                # Only now: if this process is killed before, the next one downloads everything again.
                self._lease.beat(copy=self._mirror.copy)
            except BaseException:
                self._stop()
                self._lease.beat(held=False)
                raise
        self._is_open = True
        return f"took over the lease of {last}, which ended without giving it back" if last and last.held else None

    def clear(self) -> None:
        """Delete everything at the URL but the lease."""
        with self._uploading:
            self._mirror.clear()

    def begin(self, announce: Say) -> None:
        """Upload what there is before the first step, and from then on in a thread."""
        if self._is_open:
            with announcing(f"uploading the beginning of the run to {self}", announce):
                self._upload()
            self._start(lambda: self._upload_changes(announce))

    def wake(self) -> None:
        """Have the thread upload what is new; may be called in any thread."""
        self._woken.set()

    def check(self) -> None:
        """Raise an `ExperimentError` if another run has taken over, as of the last heartbeat."""
        if self._lost is not None:
            raise self._lost

    def finish(self, announce: Say, *, patience: float | None = None) -> None:
        """Upload all that is left, and wait for it.

        Args:
            announce: called with a line of text.
            patience: for how many seconds a failed upload is tried again; `LAST_SECONDS` if None.
        """
        end, pause = time.monotonic() + (LAST_SECONDS if patience is None else patience), FIRST_PAUSE
        while self._is_open:
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
        pause = 0.0  # seconds after a failure
        while True:
            (self._ending if pause else self._woken).wait(pause or UPLOAD_SECONDS)
            if self._ending.is_set() or self._lost is not None:
                return
            self._woken.clear()
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
            pause = 0.0


def fetched(path: PathLike) -> Path:
    """A path on this machine; for a URL that of the local copy, which is updated first.

    Args:
        path: of an experiment, a checkpoint in it, or a file with weights.
    """
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
    """The local copies of the experiments at and below a URL, in the order of their names."""
    found: list[str] = []
    for folder in sorted(name.rpartition("/")[0] for name in Storage(url).listing() if _MARK.search(name)):
        if not any(f"{folder}/".startswith(f"{other}/".lstrip("/")) for other in found):
            found.append(folder)
    return [local_copy(url) / folder for folder in found]
