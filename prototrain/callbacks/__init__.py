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
    from prototrain.callbacks.helping.inject_shell import InjectShell
    from prototrain.callbacks.helping.keras_callback import KerasCallback
    from prototrain.callbacks.helping.start_proc_or_thread import StartProcOrThread
    from prototrain.callbacks.hyperparameters.human_hyper_param_setter import HumanHyperParamSetter
    from prototrain.callbacks.hyperparameters.hyper_param import HyperParam
    from prototrain.callbacks.hyperparameters.hyper_param_setter import HyperParamSetter
    from prototrain.callbacks.hyperparameters.hyper_param_setter_with_func import HyperParamSetterWithFunc
    from prototrain.callbacks.hyperparameters.learning_rate import LearningRate
    from prototrain.callbacks.hyperparameters.scheduled_hyper_param_setter import ScheduledHyperParamSetter
    from prototrain.callbacks.hyperparameters.stat_monitor_param_setter import StatMonitorParamSetter
    from prototrain.callbacks.monitor import Monitor
    from prototrain.callbacks.monitors.gradient_norm import GradientNorm
    from prototrain.callbacks.monitors.json_writer import JSONWriter
    from prototrain.callbacks.monitors.mlflow_writer import MLflowWriter
    from prototrain.callbacks.monitors.moving_average_summary import MovingAverageSummary
    from prototrain.callbacks.monitors.scalar_printer import ScalarPrinter
    from prototrain.callbacks.monitors.send_monitor_data import SendMonitorData
    from prototrain.callbacks.monitors.stat_json import StatJSON
    from prototrain.callbacks.monitors.summaries import Summaries
    from prototrain.callbacks.monitors.tensor_summaries import ActivationSummary, ParamSummary, TensorSummary
    from prototrain.callbacks.monitors.tensorboard_writer import TensorBoardWriter
    from prototrain.callbacks.monitors.wandb_writer import WandbWriter
    from prototrain.callbacks.saving.best_saver import MaxSaver, MinSaver
    from prototrain.callbacks.saving.model_saver import ModelSaver
    from prototrain.callbacks.saving.save_on_exit import SaveOnExit
    from prototrain.callbacks.scheduling.assign_variables import AssignVariables
    from prototrain.callbacks.scheduling.callback_factory import CallbackFactory
    from prototrain.callbacks.scheduling.conditional import EnableCallbackIf, PeriodicCallback
    from prototrain.callbacks.scheduling.run_op import RunOp
    from prototrain.callbacks.stopping.check_numerics import CheckNumerics
    from prototrain.callbacks.stopping.early_stopping import EarlyStopping
    from prototrain.callbacks.stopping.stop_after import StopAfter
    from prototrain.callbacks.stopping.stop_on_nan import StopOnNaN
    from prototrain.callbacks.trigger import PeriodicTrigger
    from prototrain.callbacks.watching.dump_tensor_as_image import DumpParamAsImage, DumpTensorAsImage
    from prototrain.callbacks.watching.dump_tensors import DumpTensors
    from prototrain.callbacks.watching.estimated_time_left import EstimatedTimeLeft
    from prototrain.callbacks.watching.gpu_trackers import GPUMemoryTracker, GPUUtilizationTracker
    from prototrain.callbacks.watching.graph_profiler import GraphProfiler
    from prototrain.callbacks.watching.host_memory_tracker import HostMemoryTracker
    from prototrain.callbacks.watching.process_tensors import ProcessTensors
    from prototrain.callbacks.watching.progress_bar import ProgressBar
    from prototrain.callbacks.watching.throughput_tracker import ThroughputTracker
    from prototrain.checkpoint.weights import averaged_weights

_HOMES = {
    "ActivationSummary": "callbacks.monitors.tensor_summaries",
    "AssignVariables": "callbacks.scheduling.assign_variables",
    "Best": "callbacks.best",
    "BinaryClassificationStats": "callbacks.evaluation.inferencer",
    "Callback": "callbacks.base",
    "CallbackFactory": "callbacks.scheduling.callback_factory",
    "CheckNumerics": "callbacks.stopping.check_numerics",
    "ClassificationError": "callbacks.evaluation.inferencer",
    "DumpParamAsImage": "callbacks.watching.dump_tensor_as_image",
    "DumpTensorAsImage": "callbacks.watching.dump_tensor_as_image",
    "DumpTensors": "callbacks.watching.dump_tensors",
    "EarlyStopping": "callbacks.stopping.early_stopping",
    "EnableCallbackIf": "callbacks.scheduling.conditional",
    "EstimatedTimeLeft": "callbacks.watching.estimated_time_left",
    "ExponentialMovingAverage": "callbacks.evaluation.exponential_moving_average",
    "GPUMemoryTracker": "callbacks.watching.gpu_trackers",
    "GPUUtilizationTracker": "callbacks.watching.gpu_trackers",
    "GradientNorm": "callbacks.monitors.gradient_norm",
    "GraphProfiler": "callbacks.watching.graph_profiler",
    "HostMemoryTracker": "callbacks.watching.host_memory_tracker",
    "HumanHyperParamSetter": "callbacks.hyperparameters.human_hyper_param_setter",
    "HyperParam": "callbacks.hyperparameters.hyper_param",
    "HyperParamSetter": "callbacks.hyperparameters.hyper_param_setter",
    "HyperParamSetterWithFunc": "callbacks.hyperparameters.hyper_param_setter_with_func",
    "InferenceRunner": "callbacks.evaluation.inference_runner",
    "Inferencer": "callbacks.evaluation.inferencer",
    "InjectShell": "callbacks.helping.inject_shell",
    "JSONWriter": "callbacks.monitors.json_writer",
    "KerasCallback": "callbacks.helping.keras_callback",
    "KerasMetric": "callbacks.evaluation.inferencer",
    "LearningRate": "callbacks.hyperparameters.learning_rate",
    "MLflowWriter": "callbacks.monitors.mlflow_writer",
    "MaxSaver": "callbacks.saving.best_saver",
    "MinSaver": "callbacks.saving.best_saver",
    "ModelSaver": "callbacks.saving.model_saver",
    "Monitor": "callbacks.monitor",
    "MovingAverageSummary": "callbacks.monitors.moving_average_summary",
    "ParamSummary": "callbacks.monitors.tensor_summaries",
    "PeriodicCallback": "callbacks.scheduling.conditional",
    "PeriodicTrigger": "callbacks.trigger",
    "Priority": "callbacks.base",
    "ProcessTensors": "callbacks.watching.process_tensors",
    "ProgressBar": "callbacks.watching.progress_bar",
    "ProxyCallback": "callbacks.base",
    "RunOp": "callbacks.scheduling.run_op",
    "SaveOnExit": "callbacks.saving.save_on_exit",
    "ScalarPrinter": "callbacks.monitors.scalar_printer",
    "ScalarStats": "callbacks.evaluation.inferencer",
    "ScheduledHyperParamSetter": "callbacks.hyperparameters.scheduled_hyper_param_setter",
    "SendMonitorData": "callbacks.monitors.send_monitor_data",
    "StartProcOrThread": "callbacks.helping.start_proc_or_thread",
    "StatJSON": "callbacks.monitors.stat_json",
    "StatMonitorParamSetter": "callbacks.hyperparameters.stat_monitor_param_setter",
    "StopAfter": "callbacks.stopping.stop_after",
    "StopOnNaN": "callbacks.stopping.stop_on_nan",
    "Summaries": "callbacks.monitors.summaries",
    "TensorBoardWriter": "callbacks.monitors.tensorboard_writer",
    "TensorSummary": "callbacks.monitors.tensor_summaries",
    "ThroughputTracker": "callbacks.watching.throughput_tracker",
    "Validation": "callbacks.evaluation.validation",
    "WandbWriter": "callbacks.monitors.wandb_writer",
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
