"""Who has an experiment at a URL: an object there that says so, with a heartbeat, since no storage has locks.

Each taking has a number, one more than the last, and an object of its own, ``.lease-<number>``, which is created only
if nobody else has done it: of two that take at the same time one succeeds. Whoever has the highest number has the
experiment; one that finds a higher number than its own has lost it. The object stays when it is given back, since it
says which attempt has written last.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from prototrain.errors import ExperimentError
from prototrain.system.storage import Storage
from prototrain.system.terminal import one_line

BEAT_SECONDS = 15.0
SILENT_SECONDS = 60.0
"""How long a holder must be silent before another run takes over."""
_LOOK_SECONDS = 5.0
_ANCIENT_SECONDS = 3600.0  # clocks do not differ by that
_NAME = re.compile(r"\.lease-(\d{10})")


def is_lease(name: str) -> bool:
    """Whether an object is a lease, and none of the experiment's files."""
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class Holder:
    """Who has, or had, the experiment.

    Attributes:
        process, host: its process ID and its machine's name.
        machine: its machine since that was started, and among which processes the ID is unique.
        born: when the process was started, in seconds since the epoch.
        attempt: what tells this taking from any other.
        held: whether it has not given the lease back.
        beat: when it last gave a sign of life, in seconds since the epoch by its own clock.
    """

    process: int
    host: str
    machine: str
    born: float
    attempt: str
    held: bool
    beat: float

    def __str__(self) -> str:
        return f"process {self.process} on {one_line(self.host)}"

    @classmethod
    def here(cls, now: float) -> Holder:
        """This process."""
        born = round(psutil.Process().create_time(), 2)
        return cls(os.getpid(), platform.node(), _machine(), born, uuid.uuid4().hex, True, now)

    @property
    def is_dead(self) -> bool | None:
        """Whether the process is gone; None if it is one of another machine, so that nobody here can know.

        This process itself, which has a lock here as well, asks only for what it has failed to take before.
        """
        if not self.machine or self.machine != _machine():
            return None
        if self.process == os.getpid():
            return True
        try:
            return bool(abs(psutil.Process(self.process).create_time() - self.born) > 1)
        except psutil.NoSuchProcess:
            return True


_NOBODY = Holder(0, "an unknown machine", "", 0.0, "", True, 0.0)


class Lease:
    """The lease of one experiment, from the side of one process.

    Args:
        storage: the experiment's.
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
        self._number = 0
        self._own: Holder | None = None

    def last(self) -> tuple[int, Holder | None]:
        """The number of the newest lease and who took it; 0 and None if nobody ever has."""
        numbers = sorted(int(match[1]) for match in map(_NAME.fullmatch, self._storage.top()) if match)
        if not numbers:
            return 0, None
        content = self._storage.read(_name(numbers[-1]))
        return numbers[-1], _NOBODY if content is None else _holder(content)

    def check_free(self) -> None:
        """Fail early if another process of this machine has the experiment.

        Raises:
            ExperimentError: it has.
            StorageError: the storage cannot be reached.
        """
        _, holder = self.last()
        if self._own is None and holder is not None and holder.held and holder.is_dead is False:
            raise self._in_use(holder)

    def seems_held(self) -> bool:
        """Whether a run is under way, as far as the clocks of both machines agree."""
        _, holder = self.last()
        if holder is None or not holder.held or holder.is_dead:
            return False
        return holder.is_dead is False or self._clock() - holder.beat < SILENT_SECONDS

    def take(self, note: Callable[[str, str], object], announce: Callable[[str], object]) -> str | None:
        """Take the experiment; where another machine's process has not given it back, wait for a sign of its life.

        Args:
            note: called ahead of it with the attempt that has written last ("" if there is none) and with the new one.
            announce: called with a line of text about what is waited for.

        Returns:
            a line about a run that died with the lease, or None.

        Raises:
            ExperimentError: another run has it.
            StorageError: the storage cannot be reached, or refuses to be written to.
        """
        number, holder = self.last()
        if holder is not None and holder.held:
            if holder.is_dead is False:
                raise self._in_use(holder)
            if holder.is_dead is None and self._clock() - holder.beat < _ANCIENT_SECONDS:
                number, holder = self._watch(number, holder, announce)
        own = Holder.here(self._clock())
        note("" if holder is None else holder.attempt, own.attempt)
        mine = _name(number + 1)
        won = self._storage.create(mine, _content(own))
        newest, other = self.last()
        if not won or newest != number + 1 or other is None or other.attempt != own.attempt:
            raise self._in_use(other or _NOBODY)
        self._number, self._own = newest, own
        numbers = [int(match[1]) for match in map(_NAME.fullmatch, self._storage.top()) if match]
        self._storage.delete(_name(one) for one in numbers if one < newest)
        if holder is None or not holder.held:
            return None
        return f"took over the lease of {holder}, which ended without giving it back"

    def _watch(self, number: int, holder: Holder, announce: Callable[[str], object]) -> tuple[int, Holder]:
        """Wait until one that lives would have given a sign. Only what changes counts, so no clocks are compared."""
        announce(
            f"{self._storage} is in use by {holder}, unless that was killed: waiting up to {SILENT_SECONDS:.0f} s for "
            "a sign of life of it"
        )
        for _ in range(math.ceil(SILENT_SECONDS / _LOOK_SECONDS)):
            self._sleep(_LOOK_SECONDS)
            found, now = self.last()
            if now is not None and not now.held:
                return found, now
            if (found, now) != (number, holder):
                raise self._in_use(now or _NOBODY)
        return number, holder

    def check(self) -> None:
        """Check that no other run has taken over meanwhile.

        Raises:
            ExperimentError: one has.
            StorageError: the storage cannot be reached.
        """
        newest, holder = self.last()
        if newest > self._number:
            raise ExperimentError(
                f"another run ({holder}) has taken over {self._storage}, since this one had given no sign of life for "
                f"{SILENT_SECONDS:.0f} s; this one ends"
            )

    def beat(self) -> None:
        """Give a sign of life; see `check`."""
        self.check()
        if self._own is not None:
            self._own = replace(self._own, beat=self._clock())
            self._storage.write(_name(self._number), _content(self._own))

    def give_back(self) -> None:
        """Let others have it, if this process does."""
        if self._own is not None:
            own, self._own = self._own, None
            self._storage.write(_name(self._number), _content(replace(own, held=False, beat=self._clock())))

    def _in_use(self, holder: Holder) -> ExperimentError:
        return ExperimentError(
            f"{self._storage} is in use by another run ({holder}); wait for it, stop it, or choose another "
            "trainer.experiment_name"
        )


def _name(number: int) -> str:
    return f".lease-{number:010d}"


def _content(holder: Holder) -> bytes:
    return json.dumps(asdict(holder)).encode()


def _holder(content: bytes) -> Holder:
    """What a lease says, whatever somebody may have put there."""
    kinds: dict[str, Any] = {
        "process": int,
        "host": str,
        "machine": str,
        "born": float,
        "attempt": str,
        "held": bool,
        "beat": float,
    }
    with suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
        found = json.loads(content)
        return Holder(**{name: kind(found[name]) for name, kind in kinds.items()})
    return _NOBODY


def _machine() -> str:
    """What the ID of a process belongs to: a kernel since its start, and a container on it."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""
