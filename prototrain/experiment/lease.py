"""The lease of an experiment at a URL: an object with a heartbeat, since storages have no locks."""

from __future__ import annotations

import json
import os
import platform
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from prototrain.errors import ExperimentError
from prototrain.system.storage import Storage
from prototrain.system.terminal import one_line

LEASE = ".lease"
BEAT_SECONDS = 15.0
SILENT_SECONDS = 60.0
"""How long a holder must be silent before another run takes over."""
LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class Holder:
    """The run that has, or had, the experiment.

    Attributes:
        process: its process ID.
        host: the name of its machine.
        copy: the identity of its local copy.
        run: a new one for each lease.
        held: whether it has not given the lease back.
        beat: when it gave the last sign of life, in seconds since the epoch by its clock.
    """

    process: int
    host: str
    copy: str
    run: str
    held: bool
    beat: float

    def __str__(self) -> str:
        return f"process {self.process} on {one_line(self.host)}"


class Lease:
    """The lease of one experiment, from the side of one process.

    It is created by a conditional write. The object stays when the lease is given back, since it names the local copy
    that was written last. Every method raises a `StorageError` if the storage fails.

    Args:
        storage: of the experiment.
        clock: returns seconds since the epoch.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._sleep = sleep
        self._own: Holder | None = None

    def last(self) -> Holder | None:
        """The last holder; None if there has been none."""
        content = self._storage.read(LEASE)
        if content is None:
            return None
        try:
            found = json.loads(content)
            host, copy, run = (str(found[name]) for name in ("host", "copy", "run"))
            return Holder(int(found["process"]), host, copy, run, bool(found["held"]), float(found["beat"]))
        except (ValueError, TypeError, KeyError, RecursionError):  # no run wrote that
            return Holder(0, "an unknown machine", "", "", True, 0.0)

    def seems_held(self) -> bool:
        """Whether a run is under way, if the clocks of both machines agree."""
        holder = self.last()
        return holder is not None and holder.held and self._clock() - holder.beat < SILENT_SECONDS

    def wait_until_free(self, copy: str, announce: Callable[[str], object]) -> Holder | None:
        """Wait until the holder has given the lease back, or is known to be dead.

        Args:
            copy: the identity of the local copy, whose lock this process has.
            announce: called with a line of text about the wait.

        Returns:
            the last holder.

        Raises:
            ExperimentError: another run has the lease.
        """
        self._storage.listing(LEASE)  # if the storage refuses, this names the reason; `read` may not
        holder = self.last()
        # An earlier holder with the lock of the same copy has ended.
        if holder is None or not holder.held or (holder.copy, holder.host) == (copy, platform.node()):
            return holder
        announce(
            f"{self._storage} is in use by {holder}, unless that was killed: waiting up to {SILENT_SECONDS:.0f} s for "
            "a sign of life from it"
        )
        waited = 0.0
        while waited < SILENT_SECONDS:
            self._sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS
            now = self.last()
            if now is None or not now.held:
                return now
            if now != holder:  # what changes is compared, never the clocks of two machines
                raise self._in_use(now)
        return holder

    def take(self, copy: str) -> None:
        """Take the lease, which `wait_until_free` has found to be free.

        Raises:
            ExperimentError: another run was quicker.
        """
        own = Holder(os.getpid(), platform.node(), copy, uuid.uuid4().hex, True, self._clock())
        self._storage.delete([LEASE])
        if not self._storage.create(LEASE, _content(own)):
            raise self._in_use(self.last())
        self._own = own

    def check(self) -> None:
        """Check that no other run has taken over.

        Raises:
            ExperimentError: one has.
        """
        holder = self.last()
        if self._own is not None and holder is not None and holder.run != self._own.run:
            raise ExperimentError(
                f"another run ({holder}) has taken over {self._storage}, since this one had given no sign of life for "
                f"{SILENT_SECONDS:.0f} s; this one ends"
            )

    def beat(self, *, held: bool = True) -> None:
        """Give a sign of life, or with `held=False` give the lease back; see `check`."""
        self.check()
        if self._own is not None:
            self._own = replace(self._own, beat=self._clock(), held=held)
            self._storage.write(LEASE, _content(self._own))

    def _in_use(self, holder: Holder | None) -> ExperimentError:
        return ExperimentError(
            f"{self._storage} is in use by another run ({holder or 'an unknown one'}); wait for it, stop it, or choose "
            "another trainer.experiment_name"
        )


def _content(holder: Holder) -> bytes:
    return json.dumps(asdict(holder)).encode()
