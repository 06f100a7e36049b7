"""Callbacks: everything around the training loop, one concern each."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prototrain.callbacks.base import Callback, PeriodicTrigger, Priority, ProxyCallback
    from prototrain.callbacks.evaluation import (
        BinaryClassificationStats,
        ClassificationError,
        ExponentialMovingAverage,
        Inferencer,
        InferenceRunner,
        KerasMetric,
        ScalarStats,
        Validation,
    )
    from prototrain.callbacks.hyperparameters import (
        HumanHyperParamSetter,
        HyperParam,
        HyperParamSetter,
        HyperParamSetterWithFunc,
        LearningRate,
        ScheduledHyperParamSetter,
        StatMonitorParamSetter,
    )
    from prototrain.callbacks.integrations import InjectShell, SendMonitorData, StartProcOrThread
    from prototrain.callbacks.monitor import Best, Monitor
    from prototrain.callbacks.profiling.progress_bar import ProgressBar
    from prototrain.callbacks.profiling.tensors import (
        DumpTensorAsImage,
        DumpTensors,
        ProcessTensors,
    )
    from prototrain.callbacks.profiling.trackers import (
        EstimatedTimeLeft,
        GPUMemoryTracker,
        GPUUtilizationTracker,
        GraphProfiler,
        HostMemoryTracker,
        ThroughputTracker,
    )
    from prototrain.callbacks.saving import MaxSaver, MinSaver, ModelSaver, SaveOnExit
    from prototrain.callbacks.scheduling import (
        CallbackFactory,
        EnableCallbackIf,
        PeriodicCallback,
        RunOp,
    )
    from prototrain.callbacks.stopping import CheckNumerics, EarlyStopping, StopAfter, StopOnNaN
    from prototrain.callbacks.writers.json_writer import JSONWriter
    from prototrain.callbacks.writers.scalar_printer import ScalarPrinter
    from prototrain.callbacks.writers.summaries import GradientNorm, MovingAverageSummary, Summaries
    from prototrain.callbacks.writers.tensorboard_writer import TensorBoardWriter
    from prototrain.callbacks.writers.tracker import MLflowWriter, WandbWriter
    from prototrain.checkpoint.weights import averaged_weights
    from prototrain.keras.callback import KerasCallback

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
