from __future__ import annotations

import json
import platform
import time
import uuid

import pytest

from prototrain.errors import ExperimentError
from prototrain.experiment.lock import LEASE, Holder, Lease
from prototrain.system.storage import Storage

HERE = Holder(77, platform.node(), "a run", "this copy", True, 20.0)
ELSEWHERE = HERE._replace(host="pod-7\x1b[2J", copy="another copy")


@pytest.fixture
def storage() -> Storage:
    return Storage(f"memory://{uuid.uuid4().hex}/x")


def write(storage: Storage, holder: Holder | bytes) -> None:
    storage.write(LEASE, holder if isinstance(holder, bytes) else json.dumps(holder._asdict()).encode())


@pytest.mark.parametrize(
    ("holder", "later", "waits", "error"),
    [
        (None, None, 0, None),
        (ELSEWHERE._replace(held=False), None, 0, None),
        (HERE, None, 0, None),  # a process that holds the lock of the local copy knows that it has ended
        (HERE._replace(host="pod-8"), None, 60, None),  # a machine with a copy of the disk
        (HERE._replace(copy=""), None, 60, None),  # a run that was killed before its copy was complete
        (ELSEWHERE._replace(beat=1e12), None, 60, None),
        (ELSEWHERE, ELSEWHERE._replace(beat=1.0), 15, r"is in use by another run .process 77 on pod-7\\x1b"),
        (ELSEWHERE, ELSEWHERE._replace(held=False), 15, None),
        (b"\xff", None, 60, None),
        (b'{"process": "x"}', None, 60, None),
    ],
)
def test_take(
    holder: Holder | bytes | None,
    later: Holder | None,
    waits: float,
    error: str | None,
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3 and later is not None:
            write(storage, later)

    monkeypatch.setattr(time, "sleep", sleep)
    if holder is not None:
        write(storage, holder)
    lease, said = Lease(storage), list[str]()
    if error is not None:
        with pytest.raises(ExperimentError, match=error):
            lease.take("this copy", said.append)
    else:
        last = lease.take("this copy", said.append)
        assert (last and last.copy) == (holder and getattr(holder, "copy", "")) and lease.is_held()
        lease.beat(copy="this copy")
        lease.beat(held=False)
        now = lease.last()
        assert now is not None and now.copy == "this copy" and not lease.is_held()
    assert sum(slept) == waits and len(said) == (1 if waits else 0)


def test_only_one_of_two_gets_the_lease(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Lease(storage), Lease(storage)
    first.take("this copy", print)
    write(storage, ELSEWHERE._replace(held=False))
    second.take("another copy", print)
    second.beat()
    for use in (first.check, first.beat):
        with pytest.raises(ExperimentError, match=r"another run \(process \d+ on .*\) has taken over memory://"):
            use()
    # Another run that took the lease between the check and the write.
    second.beat(held=False)
    monkeypatch.setattr(storage, "delete", lambda names: None)
    with pytest.raises(ExperimentError, match="is in use by another run"):
        first.take("this copy", print)
