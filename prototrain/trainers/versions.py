"""What a process computes with."""

from __future__ import annotations

import functools
import os
import platform
from typing import Any

import tensorflow as tf

from prototrain.experiment.environment import version_of
from prototrain.private_api.runtime import is_deterministic
from prototrain.system.processor import processor

# Variables of the environment by which TensorFlow computes in another way.
_FLAGS = (
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "TF_DETERMINISTIC_OPS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)


def versions() -> dict[str, Any]:
    """Versions, processors, threads and, if there are any, GPUs by name, as far as a run's bits may depend on them."""
    gpus = _gpus()
    set_ = tf.config.optimizer.get_experimental_options()
    options = {name: repr(value) for name, value in set_.items() if value or not name.startswith("disable_")}
    options |= {"jit": jit} if (jit := tf.config.optimizer.get_jit()) else {}
    return {
        "python": platform.python_version(),
        "numpy": version_of("numpy"),
        "tensorflow": tf.__version__,
        "keras": version_of("keras"),
        "processor": processor(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "intra-op threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter-op threads": tf.config.threading.get_inter_op_parallelism_threads(),
        **({"GPUs": list(gpus)} if gpus else {}),
        **({"op determinism": "on"} if is_deterministic() else {}),
        **({"graph optimizer": options} if options else {}),
        "flags": {name: os.environ[name] for name in _FLAGS if name in os.environ},
    }


@functools.cache
def _gpus() -> tuple[str, ...]:
    """The models of the GPUs that TensorFlow may use."""
    found = map(tf.config.experimental.get_device_details, tf.config.get_visible_devices("GPU"))
    return tuple(details.get("device_name", "GPU") for details in found)
