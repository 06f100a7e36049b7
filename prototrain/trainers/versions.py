"""What a process computes with."""

from __future__ import annotations

import os
import platform
from typing import Any

import tensorflow as tf

from prototrain.experiment.environment import version_of


def versions() -> dict[str, Any]:
    """Versions, processors and threads by name, as far as a run's bits may depend on them."""
    return {
        "python": platform.python_version(),
        "numpy": version_of("numpy"),
        "tensorflow": tf.__version__,
        "keras": version_of("keras"),
        "processors": os.cpu_count(),
        "intra-op threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter-op threads": tf.config.threading.get_inter_op_parallelism_threads(),
    }
