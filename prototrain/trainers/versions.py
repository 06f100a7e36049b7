"""What a process computes with."""

from __future__ import annotations

import functools
import os
import platform
from importlib import metadata
from typing import Any

import tensorflow as tf


def versions() -> dict[str, Any]:
    """Versions, processors and threads by name, as far as a run's bits may depend on them."""
    return {
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "tensorflow": tf.__version__,
        "keras": _version("keras"),
        "processors": os.cpu_count(),
        "intra-op threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter-op threads": tf.config.threading.get_inter_op_parallelism_threads(),
    }


_version = functools.cache(metadata.version)  # which reads files, and is asked for at every save
