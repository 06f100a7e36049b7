"""A Ray cluster of two nodes on this machine, for tests that lose one of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # Ray's workers have a low priority by default and would hardly run during other tests.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    handler = signal.getsignal(signal.SIGTERM)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()
    signal.signal(signal.SIGTERM, handler)  # Ray has replaced it
