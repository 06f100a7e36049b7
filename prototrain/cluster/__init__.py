"""Which of several processes this one is, who starts them, how they are connected, and what becomes of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "COLLECTIVES": "workers",
    "Left": "link",
    "Link": "link",
    "Worker": "workers",
    "connect": "workers",
    "find_cluster": "workers",
    "own_link": "workers",
    "run": "supervisor",
    "tf_config": "workers",
}

__all__ = ["COLLECTIVES", "Left", "Link", "Worker", "connect", "find_cluster", "own_link", "run", "tf_config"]

if TYPE_CHECKING:
    from prototrain.cluster.link import Left, Link
    from prototrain.cluster.supervisor import run
    from prototrain.cluster.workers import COLLECTIVES, Worker, connect, find_cluster, own_link, tf_config


def __getattr__(name: str) -> Any:
    # Imported when first used: what starts and watches workers has no need of TensorFlow.
    if name not in _HOMES:
        raise AttributeError(f"module 'prototrain.cluster' has no attribute {name!r}")
    return getattr(importlib.import_module(f"prototrain.cluster.{_HOMES[name]}"), name)
