"""Callbacks: everything around the training loop, one concern each."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `__all__` has the names
    from prototrain.callbacks.base import *
    from prototrain.callbacks.evaluation import *
    from prototrain.callbacks.hyperparameters import *
    from prototrain.callbacks.integrations import *
    from prototrain.callbacks.monitor import *
    from prototrain.callbacks.profiling.progress_bar import *
    from prototrain.callbacks.profiling.tensors import *
    from prototrain.callbacks.profiling.trackers import *
    from prototrain.callbacks.saving import *
    from prototrain.callbacks.scheduling import *
    from prototrain.callbacks.stopping import *
    from prototrain.callbacks.writers.json_writer import *
    from prototrain.callbacks.writers.scalar_printer import *
    from prototrain.callbacks.writers.summaries import *
    from prototrain.callbacks.writers.tensorboard_writer import *
    from prototrain.callbacks.writers.tracker import *
    from prototrain.checkpoint.weights import *
    from prototrain.keras.callback import *

__all__ = [
    "Best",
    "BinaryClassificationStats",
    "Callback",
    "CallbackFactory",
    "CheckNumerics",
    "ClassificationError",
    "DumpTensorAsImage",
    "DumpTensors",
    "EarlyStopping",
    "EnableCallbackIf",
    "EstimatedTimeLeft",
    "ExponentialMovingAverage",
    "GPUMemoryTracker",
    "GPUUtilizationTracker",
    "GradientNorm",
    "GraphProfiler",
    "HostMemoryTracker",
    "HumanHyperParamSetter",
    "HyperParam",
    "HyperParamSetter",
    "HyperParamSetterWithFunc",
    "InferenceRunner",
    "Inferencer",
    "InjectShell",
    "JSONWriter",
    "KerasCallback",
    "KerasMetric",
    "LearningRate",
    "MLflowWriter",
    "MaxSaver",
    "MinSaver",
    "ModelSaver",
    "Monitor",
    "MovingAverageSummary",
    "PeriodicCallback",
    "PeriodicTrigger",
    "Priority",
    "ProcessTensors",
    "ProgressBar",
    "ProxyCallback",
    "RunOp",
    "SaveOnExit",
    "ScalarPrinter",
    "ScalarStats",
    "ScheduledHyperParamSetter",
    "SendMonitorData",
    "StartProcOrThread",
    "StatMonitorParamSetter",
    "StopAfter",
    "StopOnNaN",
    "Summaries",
    "TensorBoardWriter",
    "ThroughputTracker",
    "Validation",
    "WandbWriter",
    "averaged_weights",
]

_MODULES = {
    "callbacks.base": "Callback PeriodicTrigger Priority ProxyCallback",
    "callbacks.evaluation": "BinaryClassificationStats ClassificationError ExponentialMovingAverage Inferencer "
    "InferenceRunner KerasMetric ScalarStats Validation",
    "callbacks.hyperparameters": "HumanHyperParamSetter HyperParam HyperParamSetter HyperParamSetterWithFunc "
    "LearningRate ScheduledHyperParamSetter StatMonitorParamSetter",
    "callbacks.integrations": "InjectShell SendMonitorData StartProcOrThread",
    "callbacks.monitor": "Best Monitor",
    "callbacks.profiling.progress_bar": "ProgressBar",
    "callbacks.profiling.tensors": "DumpTensorAsImage DumpTensors ProcessTensors",
    "callbacks.profiling.trackers": "EstimatedTimeLeft GPUMemoryTracker GPUUtilizationTracker GraphProfiler "
    "HostMemoryTracker ThroughputTracker",
    "callbacks.saving": "MaxSaver MinSaver ModelSaver SaveOnExit",
    "callbacks.scheduling": "CallbackFactory EnableCallbackIf PeriodicCallback RunOp",
    "callbacks.stopping": "CheckNumerics EarlyStopping StopAfter StopOnNaN",
    "callbacks.writers.json_writer": "JSONWriter",
    "callbacks.writers.scalar_printer": "ScalarPrinter",
    "callbacks.writers.summaries": "GradientNorm MovingAverageSummary Summaries",
    "callbacks.writers.tensorboard_writer": "TensorBoardWriter",
    "callbacks.writers.tracker": "MLflowWriter WandbWriter",
    "checkpoint.weights": "averaged_weights",
    "keras.callback": "KerasCallback",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    # Names are imported when first used, so that the engine does not load the stock callbacks.
    if name not in _HOMES:
        raise AttributeError(f"module 'prototrain.callbacks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"prototrain.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
