"""Training with several processes: the cluster, the connections between workers, and a launcher.

`run` starts workers with Ray. With Slurm, Kubernetes or your own ``TF_CONFIG``, the scheduler starts them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_MODULES = {"Worker": "cluster", "connect": "cluster", "find_cluster": "cluster", "run": "ray"}

__all__ = ["Worker", "connect", "find_cluster", "run"]

if TYPE_CHECKING:
    from prototrain.distributed.cluster import Worker, connect, find_cluster
    from prototrain.distributed.ray import run


def __getattr__(name: str) -> Any:
    # Imported at first use: the process that starts workers does not need TensorFlow.
    if name not in _MODULES:
        raise AttributeError(f"module 'prototrain.distributed' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"prototrain.distributed.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
