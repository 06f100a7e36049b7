"""Who has an experiment at a URL, and what becomes of one that was killed."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import psutil
import pytest

from prototrain.errors import ExperimentError
from prototrain.experiment.lease import Holder, Lease
from prototrain.system.storage import Storage

NOW = 1_000_000.0
HERE = Holder.here(NOW - 20)
ALIVE = replace(HERE, process=os.getppid(), born=psutil.Process(os.getppid()).create_time())
ELSEWHERE = replace(HERE, process=77, host="pod-7\x1b[2J", machine="another one")


@pytest.fixture
def storage() -> Storage:
    return Storage(f"memory://{uuid.uuid4().hex}/x")


def write(storage: Storage, holder: Holder, number: int = 3) -> None:
    storage.write(f".lease-{number:010d}", json.dumps(asdict(holder)).encode())


def lease(storage: Storage, *, later: Callable[[], object] = lambda: None) -> tuple[Lease, list[float]]:
    """A lease, and how long it has slept; `later` happens while it sleeps for the third time."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            later()

    return Lease(storage, clock=lambda: NOW, sleep=sleep), slept


@pytest.mark.parametrize(
    ("holder", "later", "waits", "line", "error"),
    [
        (None, None, 0, None, None),
        (replace(ELSEWHERE, held=False), None, 0, None, None),
        (replace(ALIVE, held=False), None, 0, None, None),
        (ALIVE, None, 0, None, f"is in use by another run .process {os.getppid()} on "),
        (replace(ALIVE, born=1.0), None, 0, "took over the lease of process", None),  # another one of the same number
        (replace(HERE, process=2**22 + 1), None, 0, "took over the lease of process", None),
        (HERE, None, 0, "took over the lease of process", None),
        (ELSEWHERE, None, 60, r"took over the lease of process 77 on pod-7\x1b[2J, which ended", None),
        (replace(ELSEWHERE, beat=NOW - 1e4), None, 0, "took over the lease of process 77", None),
        (replace(ELSEWHERE, beat=NOW + 1e4), None, 60, "took over the lease of process 77", None),
        (ELSEWHERE, replace(ELSEWHERE, beat=1.0), 15, None, r"is in use by another run .process 77 on pod-7\\x1b"),
        (ELSEWHERE, replace(ELSEWHERE, held=False), 15, None, None),
    ],
)
def test_taking(
    holder: Holder | None, later: Holder | None, waits: float, line: str | None, error: str | None, storage: Storage
) -> None:
    if holder is not None:
        write(storage, holder)
    taken, slept = lease(storage, later=lambda: later and write(storage, later))
    said: list[str] = []
    noted: list[tuple[str, str]] = []

    def take() -> str | None:
        return taken.take(lambda *attempts: noted.append(attempts), said.append)

    if error is not None:
        with pytest.raises(ExperimentError, match=error):
            take()
        assert not noted
    else:
        died = take()
        assert died is None if line is None else str(died).startswith(line)
        assert noted[0][0] == ("" if holder is None else holder.attempt)
        assert storage.top() == [f".lease-{1 if holder is None else 4:010d}"]
        _, own = taken.last()
        assert own is not None and own.held and own.attempt == noted[0][1] and own.process == os.getpid()
        taken.beat()
        taken.give_back()
        _, last = taken.last()
        assert last is not None and not last.held and last.attempt == own.attempt
    assert sum(slept) == waits and len(said) == (1 if waits else 0)


def test_what_is_no_lease_is_waited_for(storage: Storage) -> None:
    storage.write(".lease-0000000001", b"[]")
    taken, slept = lease(storage)
    assert "unknown machine" in str(taken.take(lambda *_: None, print)) and not slept  # its time is long ago


def test_of_two_at_the_same_time_one_takes_it(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = lease(storage)
    second, _ = lease(storage)

    def quicker(last: str, own: str) -> None:
        second.take(lambda *_: None, print)

    with pytest.raises(ExperimentError, match="is in use by another run"):
        first.take(quicker, print)
    second.beat()


def test_one_that_was_taken_over_notices(storage: Storage) -> None:
    first, _ = lease(storage)
    first.take(lambda *_: None, print)
    write(storage, ELSEWHERE, 2)
    for use in (first.check, first.beat):
        with pytest.raises(ExperimentError, match=r"another run \(process 77 on .*\) has taken over memory://"):
            use()
    assert first.seems_held()
    write(storage, replace(ELSEWHERE, beat=NOW - 100), 2)
    assert not first.seems_held()


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"{}", json.dumps({**asdict(HERE), "process": "x"}).encode(), b"[" * 100_000]
)
def test_damaged_leases(content: bytes, storage: Storage) -> None:
    storage.write(".lease-0000000009", content)
    found: Any = lease(storage)[0].last()
    assert found[0] == 9 and found[1].process == 0
