"""Leases of experiments at URLs: which run has one, and how another run takes over from one that was killed."""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from prototrain.errors import ExperimentError
from prototrain.experiment.lease import LEASE, Holder, Lease
from prototrain.system.storage import Storage

NOW = 1_000_000.0
HERE = Holder(77, platform.node(), "this copy", "a run", True, NOW - 20)
ELSEWHERE = replace(HERE, host="pod-7\x1b[2J", copy="another copy")


@pytest.fixture
def storage() -> Storage:
    return Storage(f"memory://{uuid.uuid4().hex}/x")


def write(storage: Storage, holder: Holder) -> None:
    storage.write(LEASE, json.dumps(asdict(holder)).encode())


def lease(storage: Storage, *, later: Callable[[], object] = lambda: None) -> tuple[Lease, list[float]]:
    """A lease, and how long it has slept; `later` is called while it sleeps for the third time."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            later()

    return Lease(storage, clock=lambda: NOW, sleep=sleep), slept


@pytest.mark.parametrize(
    ("holder", "later", "waits", "error"),
    [
        (None, None, 0, None),
        (replace(ELSEWHERE, held=False), None, 0, None),
        (replace(HERE, held=False), None, 0, None),
        (HERE, None, 0, None),  # whoever has the lock of the local copy knows that it has ended
        (replace(HERE, host="pod-8"), None, 60, None),  # a machine with a copy of the disk
        (ELSEWHERE, None, 60, None),
        (replace(ELSEWHERE, beat=NOW + 1e4), None, 60, None),
        (ELSEWHERE, replace(ELSEWHERE, beat=1.0), 15, r"is in use by another run .process 77 on pod-7\\x1b"),
        (ELSEWHERE, replace(ELSEWHERE, held=False), 15, None),
    ],
)
def test_taking(holder: Holder | None, later: Holder | None, waits: float, error: str | None, storage: Storage) -> None:
    if holder is not None:
        write(storage, holder)
    taken, slept = lease(storage, later=lambda: later and write(storage, later))
    said: list[str] = []
    if error is not None:
        with pytest.raises(ExperimentError, match=error):
            taken.wait_until_free("this copy", said.append)
    else:
        last = taken.wait_until_free("this copy", said.append)
        assert (last and last.copy) == (holder and holder.copy)
        taken.take("this copy")
        assert taken.seems_held()
        taken.beat(held=False)
        now = taken.last()
        assert now is not None and now.copy == "this copy" and not taken.seems_held()
    assert sum(slept) == waits and len(said) == (1 if waits else 0)


def test_of_two_at_the_same_time_one_keeps_it(storage: Storage) -> None:
    first, second = lease(storage)[0], lease(storage)[0]
    for one in (first, second):
        one.wait_until_free("this copy", print)
    first.take("this copy")
    second.take("another copy")
    second.beat()
    for use in (first.check, first.beat):
        with pytest.raises(ExperimentError, match=r"another run \(process \d+ on .*\) has taken over memory://"):
            use()


def test_one_that_was_quicker_keeps_it(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lease(storage)[0], lease(storage)[0]
    monkeypatch.setattr(storage, "delete", lambda names: second.take("another copy"))
    second._storage = Storage(storage.url)
    with pytest.raises(ExperimentError, match="is in use by another run"):
        first.take("this copy")
    second.beat()


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b'{"process": "x"}', b"[]", b"[" * 100_000])
def test_a_damaged_lease_is_taken_over_after_the_wait(content: bytes, storage: Storage) -> None:
    storage.write(LEASE, content)
    taken, slept = lease(storage)
    assert "unknown machine" in str(taken.wait_until_free("this copy", print)) and sum(slept) == 60
