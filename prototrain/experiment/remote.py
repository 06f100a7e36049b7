"""An experiment at a URL: it has a directory on this machine, in which everything works, and is uploaded from there.

A run takes the lease, downloads what it goes on from, and has what it makes uploaded by threads.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prototrain.errors import StorageError
from prototrain.experiment.downloading import download
from prototrain.experiment.lease import Lease
from prototrain.experiment.lock import LOCK, is_locked, is_locked_here
from prototrain.experiment.mirror import Mirror, local_copy
from prototrain.experiment.uploading import clear, upload_changes
from prototrain.experiment.uploads import Say, Uploads
from prototrain.system.forks import tell_of_forks
from prototrain.system.storage import Storage
from prototrain.system.terminal import say
from prototrain.system.waiting import announcing


class Remote:
    """What lies at one URL, from the side of this process.

    Args:
        url: of the experiment, as `url_of` gives it.

    Attributes:
        directory: where it lies on this machine.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.storage = Storage(url)
        self.directory = local_copy(url)
        self._mirror = Mirror(self.storage, self.directory)
        self._lease = Lease(self.storage)
        self._forget()
        tell_of_forks(self)

    def _forget(self) -> None:
        self._is_open = False
        self._uploads = Uploads(self._mirror, self._lease)
        self._next = ""  # the attempt that this one is

    def __str__(self) -> str:
        return self.url

    def after_fork(self) -> None:
        """Leave the lease and the uploads to the parent."""
        self._forget()

    # -- for those that look at it ------------------------------------------------------------------------------------

    def fetch(self, *, whole: bool = False) -> None:
        """Bring the directory up to date, unless a run on this machine works in it.

        Args:
            whole: whether checkpoints are wanted, too; else only directories that say which there are.

        Raises:
            StorageError: the storage cannot be reached, or refuses.
            ExperimentError: what is there cannot be files of a directory.
        """
        if self._is_open:
            return
        with self._alone(), announcing(f"reading from {self}", _to_stderr):
            if is_locked(self.directory / LOCK):
                return
            self._mirror.recall()
            _, holder = self._lease.last()
            if not self._is_newest("" if holder is None else holder.attempt):
                download(self._mirror, whole=whole, announce=_to_stderr)

    def check_free(self) -> None:
        """Fail early if another process of this machine has it; see `Lease.check_free`."""
        if not self._is_open:
            self._lease.check_free()

    def is_running(self) -> bool:
        """Whether a run seems to be under way."""
        return self._is_open or self._lease.seems_held()

    def top(self) -> list[str]:
        """The names of what lies right there, but for leases."""
        return [name for name in self.storage.top() if not name.startswith(".lease-")]

    def _is_newest(self, attempt: str) -> bool:
        """Whether the directory is no older than what is there: the attempt that has written last has worked in it."""
        return bool(attempt) and attempt in self._mirror.attempts

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others on this machine from changing the directory at the same time."""
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
        """Take the lease and bring the directory, which this process has locked, up to date.

        Args:
            announce: called with a line of text about what is waited for.
            to_clear: whether what is there will be deleted at once, and is not to be downloaded first.

        Returns:
            a line about a run that died with the lease, or None.

        Raises:
            ExperimentError: another run has it, or what is there cannot be files of a directory.
            StorageError: the storage cannot be reached, or refuses.
        """
        if self._is_open:
            return None
        is_newest = False

        def note(last: str, own: str) -> None:
            nonlocal is_newest
            is_newest = self._is_newest(last)
            self._next = own
            if is_newest:  # should this process be killed in between, either may be the last one
                self._mirror.attempts = [last, own]
                self._mirror.remember()

        with self._alone():
            self._mirror.recall()
            self._forget()
            died = self._lease.take(note, announce)
            self._uploads.keep_lease()
            try:
                if not is_newest and not to_clear:
                    with announcing(f"downloading what the run goes on from, {self}", announce):
                        leftovers = download(self._mirror, whole=True, announce=announce)
                        self.storage.delete(leftovers)
                self._mirror.attempts = [] if to_clear else [self._next]
                self._mirror.remember()
            except BaseException:
                self._uploads.stop()
                self._lease.give_back()
                raise
        self._is_open = True
        return died

    def begin(self, announce: Say) -> None:
        """Upload what there is ahead of the first step, and from now on by a thread.

        Args:
            announce: called with a line of text, also from the thread.

        Raises:
            StorageError: the storage cannot be reached, or refuses.
        """
        if self._is_open:
            self._uploads.begin(announce)

    def wake(self) -> None:
        """Have what is new uploaded soon; in any thread."""
        self._uploads.wake()

    def check(self) -> None:
        """Check that no other run has taken over.

        Raises:
            ExperimentError: one has.
        """
        self._uploads.check()

    def finish(self, announce: Say, *, patience: float | None = None) -> None:
        """Upload all that is left, and wait for it.

        Args:
            announce: called with a line of text.
            patience: for how many seconds it is tried again where the storage fails; `uploads.LAST_SECONDS` if None.

        Raises:
            StorageError: it has failed for so long; the message says where everything is.
            ExperimentError: another run has taken over.
        """
        if self._is_open:
            self._uploads.finish(announce, patience)

    def close(self, announce: Say) -> None:
        """Give the lease back; what is not uploaded by now is not."""
        if not self._is_open:
            return
        self._uploads.stop()
        self._is_open = False
        if self._uploads.lost is not None:
            return
        try:
            self._lease.give_back()
        except StorageError as error:
            announce(f"WARNING: {error}; others have to wait until the lease has expired")

    def clear(self) -> None:
        """Delete everything there but the leases."""
        with self._uploads.uploading:
            clear(self._mirror)
            self._mirror.attempts = [self._next]
            self._mirror.remember()

    def keep(self, path: Path) -> None:
        """Upload what was changed in the directory beside a run: a file or a directory of files.

        A run of this process that works in it uploads that itself, and goes on where the storage fails.

        Raises:
            StorageError: the storage cannot be reached, or refuses.
        """
        if is_locked_here(self.directory / LOCK):
            return
        with self._alone(), announcing(f"uploading to {self}"):
            self._mirror.recall()
            upload_changes(self._mirror, path)


def _to_stderr(text: str) -> None:
    say(text, to_stderr=True)
