"""What a process computes with."""

from __future__ import annotations

import functools
import os
import platform
from typing import Any

import tensorflow as tf

from prototrain.experiment.environment import version_of
from prototrain.system.processor import processor


def versions() -> dict[str, Any]:
    """Versions, processors, threads and, if there are any, GPUs by name, as far as a run's bits may depend on them."""
    gpus = _gpus()
    return {
        "python": platform.python_version(),
        "numpy": version_of("numpy"),
        "tensorflow": tf.__version__,
        "keras": version_of("keras"),
        "processor": processor(),
        "processors": os.cpu_count(),
        "intra-op threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter-op threads": tf.config.threading.get_inter_op_parallelism_threads(),
        **({"GPUs": list(gpus)} if gpus else {}),
    }


@functools.cache
def _gpus() -> tuple[str, ...]:
    """The models of the GPUs that TensorFlow may use."""
    found = map(tf.config.experimental.get_device_details, tf.config.get_visible_devices("GPU"))
    return tuple(details.get("device_name", "GPU") for details in found)
