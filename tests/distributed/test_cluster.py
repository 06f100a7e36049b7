from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from prototrain.distributed.cluster import Worker, meet
from prototrain.errors import ClusterError


def addresses(count: int) -> tuple[str, ...]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
    for one in sockets:
        one.close()
    return found


def test_workers_connect_to_the_chief_and_strangers_are_refused() -> None:
    ours = addresses(3)
    other_run = (ours[0], *addresses(2))
    with ThreadPoolExecutor(4) as pool:
        stranger = pool.submit(meet, Worker(1, 3, other_run), 3.0)
        met = [pool.submit(meet, Worker(index, 3, ours), 60.0) for index in (2, 0, 1)]
        for one in met:
            one.result()
        with pytest.raises(ClusterError, match=r"worker 0 .*, the chief, did not come"):
            stranger.result()


def test_missing_workers_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    ours = addresses(2)
    with pytest.raises(ClusterError, match=rf"worker 1 \({ours[1]}\) did not come within 2\.5 seconds"):
        meet(Worker(0, 2, ours), 2.5)
    assert f"waiting for worker 1 ({ours[1]}) to start" in capsys.readouterr().out


def test_port_in_use() -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(ClusterError, match="cannot listen at"):
        meet(Worker(0, 2, (f"127.0.0.1:{taken.getsockname()[1]}", "127.0.0.1:1")), 1.0)
