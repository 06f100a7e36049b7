"""Training with several processes: which one this is, how they are connected, and what starts them.

`run` starts workers with Ray. Under Slurm, Kubernetes or with a ``TF_CONFIG`` of your own, the scheduler does that.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_MODULES = {"Worker": "connect", "connect": "connect", "find_cluster": "connect", "run": "ray"}

__all__ = ["Worker", "connect", "find_cluster", "run"]

if TYPE_CHECKING:
    from prototrain.distributed.connect import Worker, connect, find_cluster
    from prototrain.distributed.ray import run


def __getattr__(name: str) -> Any:
    # Imported at first use: the process that starts workers does not need TensorFlow.
    if name not in _MODULES:
        raise AttributeError(f"module 'prototrain.distributed' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"prototrain.distributed.{_MODULES[name]}"), name)
    globals()[name] = value  # the import has set `connect` to the module of that name
    return value
