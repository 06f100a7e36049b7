"""The uploads of a run beside its training: checkpoints as they come, other files at intervals and at the end.

If the storage fails, training continues and the upload is tried again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from prototrain.errors import ExperimentError, StorageError
from prototrain.experiment.lease import BEAT_SECONDS, Lease
from prototrain.experiment.mirror import Mirror
from prototrain.experiment.uploading import upload
from prototrain.system.waiting import announcing

UPLOAD_SECONDS = 30.0
_SHARE = 10  # uploading at intervals may take a tenth of the time
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
LAST_SECONDS = 60.0
"""How long the end of a run waits for a storage that fails."""

Say = Callable[[str], object]


class Uploads:
    """Threads that keep a lease and upload what a run makes.

    Args:
        mirror: of the run's files.
        lease: which this process has taken.

    Attributes:
        uploading: is held while something is uploaded.
        lost: what is wrong since another run has taken over, or None.
    """

    def __init__(self, mirror: Mirror, lease: Lease) -> None:
        self._mirror = mirror
        self._lease = lease
        self._is_begun = False
        self._ending = threading.Event()
        self._woken = threading.Event()
        self._threads: list[threading.Thread] = []
        self.uploading = threading.Lock()
        self.lost: ExperimentError | None = None

    def keep_lease(self) -> None:
        """Give signs of life from now on."""
        self._start(self._beat)

    def begin(self, announce: Say) -> None:
        """Upload what there is ahead of the first step, and from now on by a thread; see `Remote.begin`."""
        if self._is_begun:
            return
        with announcing(f"uploading the beginning of the run to {self._mirror.storage}", announce):
            self._upload()
        self._is_begun = True
        self._start(lambda: self._upload_on(announce))

    def wake(self) -> None:
        """Have what is new uploaded soon; in any thread."""
        self._woken.set()

    def check(self) -> None:
        """Check that no other run has taken over.

        Raises:
            ExperimentError: one has.
        """
        if self.lost is not None:
            raise self.lost

    def finish(self, announce: Say, patience: float | None) -> None:
        """Upload all that is left, and wait for it; see `Remote.finish`."""
        self.check()
        pauses = _pauses()
        end = time.monotonic() + (LAST_SECONDS if patience is None else patience)
        while True:
            try:
                with announcing(f"uploading what is left to {self._mirror.storage}", announce):
                    while self._upload():
                        pass
                return
            except (StorageError, OSError) as error:
                pause = next(pauses)
                if time.monotonic() + pause > end:
                    raise StorageError(
                        f"{_said(error)}; everything of the run lies whole in {self._mirror.directory}: the same "
                        "command on this machine uploads it once the storage answers"
                    ) from error
                announce(f"WARNING: {_said(error)}; trying again for {end - time.monotonic():.0f} s")
                time.sleep(pause)

    def stop(self) -> None:
        """End the threads; what is not uploaded by now is not."""
        self._ending.set()
        self._woken.set()
        for thread in self._threads:
            thread.join()

    # -- threads ------------------------------------------------------------------------------------------------------

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="upload", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _upload(self) -> bool:
        with self.uploading:
            return upload(self._mirror, self._check_lease)

    def _check_lease(self) -> None:
        try:
            self._lease.check()
        except ExperimentError as error:
            self.lost = error
            raise

    def _beat(self) -> None:
        while not self._ending.wait(BEAT_SECONDS) and self.lost is None:
            try:
                self._lease.beat()
            except ExperimentError as error:
                self.lost = error
            except StorageError:
                pass  # the uploads say so, and it is tried again

    def _upload_on(self, announce: Say) -> None:
        wait, pauses, is_failing = UPLOAD_SECONDS, _pauses(), False
        while not self._ending.is_set() and self.lost is None:
            if is_failing:
                self._ending.wait(wait)
            else:
                self._woken.wait(wait)
            if self._ending.is_set() or self.lost is not None:
                return
            self._woken.clear()
            began = time.monotonic()
            try:
                self._check_lease()
                has_more = self._upload()
            except ExperimentError:
                return  # which `check` raises where the run can be ended
            except (StorageError, OSError) as error:
                wait = next(pauses)
                if not is_failing:
                    announce(f"WARNING: {_said(error)}; training continues, and it is tried again until it works")
                is_failing = True
                continue
            if is_failing:
                announce(f"uploads to {self._mirror.storage} work again, nothing is missing")
            wait, pauses, is_failing = max(UPLOAD_SECONDS, _SHARE * (time.monotonic() - began)), _pauses(), False
            if has_more:
                self._woken.set()


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE)


def _said(error: StorageError | OSError) -> str:
    return str(error) if isinstance(error, StorageError) else f"cannot read {error.filename}: {error.strerror}"
