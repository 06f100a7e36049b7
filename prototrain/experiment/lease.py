"""The lease of an experiment at a URL: an object with a heartbeat, because object stores have no locks."""

from __future__ import annotations

import json
import os
import platform
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from prototrain.errors import ExperimentError
from prototrain.experiment.lock import in_use
from prototrain.system.storage import Storage
from prototrain.system.terminal import one_line

LEASE = ".lease"
BEAT_SECONDS = 15.0
SILENT_SECONDS = 60.0  # how long a holder must be silent before another run can take over
LOOK_SECONDS = 5.0


class Holder(NamedTuple):
    """The run that holds the lease, or held it last."""

    process: int
    host: str
    run: str  # unique for each lease
    copy: str = ""  # the identifier of its local copy, once that is complete
    held: bool = True  # until the lease is released
    beat: float = 0.0  # the last heartbeat, in seconds since the epoch by the holder's clock

    def __str__(self) -> str:
        return f"process {self.process} on {one_line(self.host)}"


class Lease:
    """The lease of one experiment, as one process sees it.

    The object remains when the lease is released, because it names the local copy that was written last. Every method
    raises a `StorageError` if the storage fails.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._own: Holder | None = None

    def last(self) -> Holder | None:
        """Return the last holder, or None if there was none."""
        content = self._storage.read(LEASE)
        try:
            return None if content is None else Holder(**json.loads(content))
        except (ValueError, TypeError, RecursionError):  # not written by a run
            return Holder(0, "an unknown machine", "")

    def is_held(self) -> bool:
        """Return whether a run is active, provided that the clocks of both machines agree."""
        holder = self.last()
        return holder is not None and holder.held and time.time() - holder.beat < SILENT_SECONDS

    def take(self, copy: str, announce: Callable[[str], object]) -> Holder | None:
        """Take the lease once its holder has released it or is known to be dead; returns the last holder.

        `copy` is the identifier of the local copy, which this process has locked. Raises an `ExperimentError` if
        another run holds the lease.
        """
        self._storage.listing(LEASE)  # unlike `read`, this names the reason if the storage refuses
        last = self.last()
        # A holder of the same copy has ended, because this process holds the lock of the copy.
        if last is not None and last.held and (last.copy, last.host) != (copy, platform.node()):
            last = self._wait(last, announce)
        own = Holder(os.getpid(), platform.node(), uuid.uuid4().hex, beat=time.time())
        self._storage.delete([LEASE])
        if not self._storage.write(LEASE, json.dumps(own._asdict()).encode(), is_new=True):
            raise in_use(str(self._storage), self.last())
        self._own = own
        return last

    def _wait(self, holder: Holder, announce: Callable[[str], object]) -> Holder | None:
        patience = f"waiting up to {SILENT_SECONDS:.0f} s for a heartbeat"
        announce(f"{self._storage} is in use by {holder}, unless that was killed: {patience}")
        waited = 0.0
        while waited < SILENT_SECONDS:
            time.sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS
            now = self.last()
            if now is None or not now.held:
                return now
            if now != holder:  # compares heartbeats, because the clocks of two machines may differ
                raise in_use(str(self._storage), now)
        return holder

    def check(self) -> None:
        """Raise an `ExperimentError` if another run has taken over."""
        holder = self.last()
        if self._own is not None and holder is not None and holder.run != self._own.run:
            silence = f"{SILENT_SECONDS:.0f} s without a heartbeat"
            raise ExperimentError(
                f"another run ({holder}) has taken over {self._storage} after {silence}; this one ends"
            )

    def beat(self, **changes: Any) -> None:
        """Write a heartbeat, with changed attributes of the `Holder` if given. Raises the error of `check`."""
        self.check()
        if self._own is not None:
            self._own = self._own._replace(beat=time.time(), **changes)
            self._storage.write(LEASE, json.dumps(self._own._asdict()).encode())
