"""Callbacks: everything around the training loop, one concern each."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prototrain.callbacks.base import Callback, Priority, ProxyCallback
    from prototrain.callbacks.best import Best
    from prototrain.callbacks.evaluation.exponential_moving_average import ExponentialMovingAverage
    from prototrain.callbacks.evaluation.inference_runner import InferenceRunner
    from prototrain.callbacks.evaluation.inferencer import (
        BinaryClassificationStats,
        ClassificationError,
        Inferencer,
        KerasMetric,
        ScalarStats,
    )
    from prototrain.callbacks.evaluation.validation import Validation
    from prototrain.callbacks.hyperparameters.hyper_param import HyperParam
    from prototrain.callbacks.hyperparameters.learning_rate import LearningRate
    from prototrain.callbacks.hyperparameters.set_trainable import SetTrainable
    from prototrain.callbacks.hyperparameters.setters import (
        HumanHyperParamSetter,
        HyperParamSetter,
        HyperParamSetterWithFunc,
        ScheduledHyperParamSetter,
        StatMonitorParamSetter,
    )
    from prototrain.callbacks.integrations.shells import InjectShell
    from prototrain.callbacks.integrations.start_proc_or_thread import StartProcOrThread
    from prototrain.callbacks.monitor import Monitor
    from prototrain.callbacks.profiling.graph_profiler import GraphProfiler
    from prototrain.callbacks.profiling.progress_bar import ProgressBar
    from prototrain.callbacks.profiling.tensors import DumpParamAsImage, DumpTensorAsImage, DumpTensors, ProcessTensors
    from prototrain.callbacks.profiling.trackers import (
        EstimatedTimeLeft,
        GPUMemoryTracker,
        GPUUtilizationTracker,
        HostMemoryTracker,
        ThroughputTracker,
    )
    from prototrain.callbacks.saving.best_saver import MaxSaver, MinSaver
    from prototrain.callbacks.saving.model_saver import ModelSaver
    from prototrain.callbacks.saving.save_on_exit import SaveOnExit
    from prototrain.callbacks.scheduling.conditional import EnableCallbackIf, PeriodicCallback
    from prototrain.callbacks.scheduling.functions import AssignVariables, CallbackFactory, RunOp
    from prototrain.callbacks.stopping.early_stopping import EarlyStopping
    from prototrain.callbacks.stopping.numerics import CheckNumerics, StopOnNaN
    from prototrain.callbacks.stopping.stop_after import StopAfter
    from prototrain.callbacks.trigger import PeriodicTrigger
    from prototrain.callbacks.writers.json_writer import JSONWriter, StatJSON
    from prototrain.callbacks.writers.mlflow_writer import MLflowWriter
    from prototrain.callbacks.writers.moving_average_summary import MovingAverageSummary
    from prototrain.callbacks.writers.scalar_printer import ScalarPrinter
    from prototrain.callbacks.writers.send_monitor_data import SendMonitorData
    from prototrain.callbacks.writers.summaries import GradientNorm, Summaries
    from prototrain.callbacks.writers.tensor_summaries import ActivationSummary, ParamSummary, TensorSummary
    from prototrain.callbacks.writers.tensorboard_writer import TensorBoardWriter
    from prototrain.callbacks.writers.wandb_writer import WandbWriter
    from prototrain.checkpoint.weights import averaged_weights
    from prototrain.keras.callback import KerasCallback

_HOMES = {
    "ActivationSummary": "callbacks.writers.tensor_summaries",
    "AssignVariables": "callbacks.scheduling.functions",
    "Best": "callbacks.best",
    "BinaryClassificationStats": "callbacks.evaluation.inferencer",
    "Callback": "callbacks.base",
    "CallbackFactory": "callbacks.scheduling.functions",
    "CheckNumerics": "callbacks.stopping.numerics",
    "ClassificationError": "callbacks.evaluation.inferencer",
    "DumpParamAsImage": "callbacks.profiling.tensors",
    "DumpTensorAsImage": "callbacks.profiling.tensors",
    "DumpTensors": "callbacks.profiling.tensors",
    "EarlyStopping": "callbacks.stopping.early_stopping",
    "EnableCallbackIf": "callbacks.scheduling.conditional",
    "EstimatedTimeLeft": "callbacks.profiling.trackers",
    "ExponentialMovingAverage": "callbacks.evaluation.exponential_moving_average",
    "GPUMemoryTracker": "callbacks.profiling.trackers",
    "GPUUtilizationTracker": "callbacks.profiling.trackers",
    "GradientNorm": "callbacks.writers.summaries",
    "GraphProfiler": "callbacks.profiling.graph_profiler",
    "HostMemoryTracker": "callbacks.profiling.trackers",
    "HumanHyperParamSetter": "callbacks.hyperparameters.setters",
    "HyperParam": "callbacks.hyperparameters.hyper_param",
    "HyperParamSetter": "callbacks.hyperparameters.setters",
    "HyperParamSetterWithFunc": "callbacks.hyperparameters.setters",
    "InferenceRunner": "callbacks.evaluation.inference_runner",
    "Inferencer": "callbacks.evaluation.inferencer",
    "InjectShell": "callbacks.integrations.shells",
    "JSONWriter": "callbacks.writers.json_writer",
    "KerasCallback": "keras.callback",
    "KerasMetric": "callbacks.evaluation.inferencer",
    "LearningRate": "callbacks.hyperparameters.learning_rate",
    "MLflowWriter": "callbacks.writers.mlflow_writer",
    "MaxSaver": "callbacks.saving.best_saver",
    "MinSaver": "callbacks.saving.best_saver",
    "ModelSaver": "callbacks.saving.model_saver",
    "Monitor": "callbacks.monitor",
    "MovingAverageSummary": "callbacks.writers.moving_average_summary",
    "ParamSummary": "callbacks.writers.tensor_summaries",
    "PeriodicCallback": "callbacks.scheduling.conditional",
    "PeriodicTrigger": "callbacks.trigger",
    "Priority": "callbacks.base",
    "ProcessTensors": "callbacks.profiling.tensors",
    "ProgressBar": "callbacks.profiling.progress_bar",
    "ProxyCallback": "callbacks.base",
    "RunOp": "callbacks.scheduling.functions",
    "SaveOnExit": "callbacks.saving.save_on_exit",
    "ScalarPrinter": "callbacks.writers.scalar_printer",
    "ScalarStats": "callbacks.evaluation.inferencer",
    "ScheduledHyperParamSetter": "callbacks.hyperparameters.setters",
    "SendMonitorData": "callbacks.writers.send_monitor_data",
    "SetTrainable": "callbacks.hyperparameters.set_trainable",
    "StartProcOrThread": "callbacks.integrations.start_proc_or_thread",
    "StatJSON": "callbacks.writers.json_writer",
    "StatMonitorParamSetter": "callbacks.hyperparameters.setters",
    "StopAfter": "callbacks.stopping.stop_after",
    "StopOnNaN": "callbacks.stopping.numerics",
    "Summaries": "callbacks.writers.summaries",
    "TensorBoardWriter": "callbacks.writers.tensorboard_writer",
    "TensorSummary": "callbacks.writers.tensor_summaries",
    "ThroughputTracker": "callbacks.profiling.trackers",
    "Validation": "callbacks.evaluation.validation",
    "WandbWriter": "callbacks.writers.wandb_writer",
    "averaged_weights": "checkpoint.weights",
}

__all__ = [
    "ActivationSummary",
    "AssignVariables",
    "Best",
    "BinaryClassificationStats",
    "Callback",
    "CallbackFactory",
    "CheckNumerics",
    "ClassificationError",
    "DumpParamAsImage",
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
    "ParamSummary",
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
    "SetTrainable",
    "StartProcOrThread",
    "StatJSON",
    "StatMonitorParamSetter",
    "StopAfter",
    "StopOnNaN",
    "Summaries",
    "TensorBoardWriter",
    "TensorSummary",
    "ThroughputTracker",
    "Validation",
    "WandbWriter",
    "averaged_weights",
]


def __getattr__(name: str) -> Any:
    # Names are imported when first used, so that the engine does not load the stock callbacks.
    if name not in _HOMES:
        raise AttributeError(f"module 'prototrain.callbacks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"prototrain.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
