"""Callbacks: everything around the training loop, one concern each."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prototrain.callbacks.base import Callback as Callback
    from prototrain.callbacks.base import PeriodicTrigger as PeriodicTrigger
    from prototrain.callbacks.base import Priority as Priority
    from prototrain.callbacks.base import ProxyCallback as ProxyCallback
    from prototrain.callbacks.evaluation import BinaryClassificationStats as BinaryClassificationStats
    from prototrain.callbacks.evaluation import ClassificationError as ClassificationError
    from prototrain.callbacks.evaluation import (
        ExponentialMovingAverage as ExponentialMovingAverage,
    )
    from prototrain.callbacks.evaluation import Inferencer as Inferencer
    from prototrain.callbacks.evaluation import InferenceRunner as InferenceRunner
    from prototrain.callbacks.evaluation import KerasMetric as KerasMetric
    from prototrain.callbacks.evaluation import ScalarStats as ScalarStats
    from prototrain.callbacks.evaluation import Validation as Validation
    from prototrain.callbacks.hyperparameters import HumanHyperParamSetter as HumanHyperParamSetter
    from prototrain.callbacks.hyperparameters import HyperParam as HyperParam
    from prototrain.callbacks.hyperparameters import HyperParamSetter as HyperParamSetter
    from prototrain.callbacks.hyperparameters import HyperParamSetterWithFunc as HyperParamSetterWithFunc
    from prototrain.callbacks.hyperparameters import LearningRate as LearningRate
    from prototrain.callbacks.hyperparameters import ScheduledHyperParamSetter as ScheduledHyperParamSetter
    from prototrain.callbacks.hyperparameters import StatMonitorParamSetter as StatMonitorParamSetter
    from prototrain.callbacks.integrations import InjectShell as InjectShell
    from prototrain.callbacks.integrations import SendMonitorData as SendMonitorData
    from prototrain.callbacks.integrations import StartProcOrThread as StartProcOrThread
    from prototrain.callbacks.monitor import Best as Best
    from prototrain.callbacks.monitor import Monitor as Monitor
    from prototrain.callbacks.profiling.progress_bar import ProgressBar as ProgressBar
    from prototrain.callbacks.profiling.tensors import ActivationSummary as ActivationSummary
    from prototrain.callbacks.profiling.tensors import DumpParamAsImage as DumpParamAsImage
    from prototrain.callbacks.profiling.tensors import DumpTensorAsImage as DumpTensorAsImage
    from prototrain.callbacks.profiling.tensors import DumpTensors as DumpTensors
    from prototrain.callbacks.profiling.tensors import ParamSummary as ParamSummary
    from prototrain.callbacks.profiling.tensors import ProcessTensors as ProcessTensors
    from prototrain.callbacks.profiling.tensors import TensorSummary as TensorSummary
    from prototrain.callbacks.profiling.trackers import EstimatedTimeLeft as EstimatedTimeLeft
    from prototrain.callbacks.profiling.trackers import GPUMemoryTracker as GPUMemoryTracker
    from prototrain.callbacks.profiling.trackers import GPUUtilizationTracker as GPUUtilizationTracker
    from prototrain.callbacks.profiling.trackers import GraphProfiler as GraphProfiler
    from prototrain.callbacks.profiling.trackers import HostMemoryTracker as HostMemoryTracker
    from prototrain.callbacks.profiling.trackers import ThroughputTracker as ThroughputTracker
    from prototrain.callbacks.saving import MaxSaver as MaxSaver
    from prototrain.callbacks.saving import MinSaver as MinSaver
    from prototrain.callbacks.saving import ModelSaver as ModelSaver
    from prototrain.callbacks.saving import SaveOnExit as SaveOnExit
    from prototrain.callbacks.scheduling import AssignVariables as AssignVariables
    from prototrain.callbacks.scheduling import CallbackFactory as CallbackFactory
    from prototrain.callbacks.scheduling import EnableCallbackIf as EnableCallbackIf
    from prototrain.callbacks.scheduling import PeriodicCallback as PeriodicCallback
    from prototrain.callbacks.scheduling import RunOp as RunOp
    from prototrain.callbacks.stopping import CheckNumerics as CheckNumerics
    from prototrain.callbacks.stopping import EarlyStopping as EarlyStopping
    from prototrain.callbacks.stopping import StopAfter as StopAfter
    from prototrain.callbacks.stopping import StopOnNaN as StopOnNaN
    from prototrain.callbacks.writers.json_writer import JSONWriter as JSONWriter
    from prototrain.callbacks.writers.scalar_printer import ScalarPrinter as ScalarPrinter
    from prototrain.callbacks.writers.summaries import GradientNorm as GradientNorm
    from prototrain.callbacks.writers.summaries import MovingAverageSummary as MovingAverageSummary
    from prototrain.callbacks.writers.summaries import Summaries as Summaries
    from prototrain.callbacks.writers.tensorboard_writer import TensorBoardWriter as TensorBoardWriter
    from prototrain.callbacks.writers.tracker import MLflowWriter as MLflowWriter
    from prototrain.callbacks.writers.tracker import WandbWriter as WandbWriter
    from prototrain.checkpoint.weights import averaged_weights as averaged_weights
    from prototrain.keras.callback import KerasCallback as KerasCallback

_MODULES = {
    "callbacks.base": "Callback PeriodicTrigger Priority ProxyCallback",
    "callbacks.evaluation": "BinaryClassificationStats ClassificationError ExponentialMovingAverage Inferencer "
    "InferenceRunner KerasMetric ScalarStats Validation",
    "callbacks.hyperparameters": "HumanHyperParamSetter HyperParam HyperParamSetter HyperParamSetterWithFunc "
    "LearningRate ScheduledHyperParamSetter StatMonitorParamSetter",
    "callbacks.integrations": "InjectShell SendMonitorData StartProcOrThread",
    "callbacks.monitor": "Best Monitor",
    "callbacks.profiling.progress_bar": "ProgressBar",
    "callbacks.profiling.tensors": "ActivationSummary DumpParamAsImage DumpTensorAsImage DumpTensors ParamSummary "
    "ProcessTensors TensorSummary",
    "callbacks.profiling.trackers": "EstimatedTimeLeft GPUMemoryTracker GPUUtilizationTracker GraphProfiler "
    "HostMemoryTracker ThroughputTracker",
    "callbacks.saving": "MaxSaver MinSaver ModelSaver SaveOnExit",
    "callbacks.scheduling": "AssignVariables CallbackFactory EnableCallbackIf PeriodicCallback RunOp",
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

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # Names are imported when first used, so that the engine does not load the stock callbacks.
    if name not in _HOMES:
        raise AttributeError(f"module 'prototrain.callbacks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"prototrain.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
