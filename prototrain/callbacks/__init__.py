"""Everything around the loop, one concern per callback."""

from prototrain.callbacks.base import Callback, Priority, ProxyCallback
from prototrain.callbacks.best import Best
from prototrain.callbacks.best_saver import MaxSaver, MinSaver
from prototrain.callbacks.callback_factory import CallbackFactory
from prototrain.callbacks.check_numerics import CheckNumerics
from prototrain.callbacks.conditional import EnableCallbackIf, PeriodicCallback
from prototrain.callbacks.dump_tensor_as_image import DumpTensorAsImage
from prototrain.callbacks.dump_tensors import DumpTensors
from prototrain.callbacks.early_stopping import EarlyStopping
from prototrain.callbacks.estimated_time_left import EstimatedTimeLeft
from prototrain.callbacks.exponential_moving_average import ExponentialMovingAverage, averaged_weights
from prototrain.callbacks.gpu_trackers import GPUMemoryTracker, GPUUtilizationTracker
from prototrain.callbacks.gradient_norm import GradientNorm
from prototrain.callbacks.graph_profiler import GraphProfiler
from prototrain.callbacks.host_memory_tracker import HostMemoryTracker
from prototrain.callbacks.human_hyper_param_setter import HumanHyperParamSetter
from prototrain.callbacks.hyper_param import HyperParam
from prototrain.callbacks.hyper_param_setter import HyperParamSetter
from prototrain.callbacks.hyper_param_setter_with_func import HyperParamSetterWithFunc
from prototrain.callbacks.inference_runner import InferenceRunner
from prototrain.callbacks.inferencer import (
    BinaryClassificationStats,
    ClassificationError,
    Inferencer,
    KerasMetric,
    ScalarStats,
)
from prototrain.callbacks.inject_shell import InjectShell
from prototrain.callbacks.json_writer import JSONWriter
from prototrain.callbacks.keras_callback import KerasCallback
from prototrain.callbacks.learning_rate import LearningRate
from prototrain.callbacks.model_saver import ModelSaver
from prototrain.callbacks.monitor import Monitor
from prototrain.callbacks.moving_average_summary import MovingAverageSummary
from prototrain.callbacks.process_tensors import ProcessTensors
from prototrain.callbacks.progress_bar import ProgressBar
from prototrain.callbacks.run_op import RunOp
from prototrain.callbacks.save_on_exit import SaveOnExit
from prototrain.callbacks.scalar_printer import ScalarPrinter
from prototrain.callbacks.scheduled_hyper_param_setter import ScheduledHyperParamSetter
from prototrain.callbacks.send_monitor_data import SendMonitorData
from prototrain.callbacks.start_proc_or_thread import StartProcOrThread
from prototrain.callbacks.stat_monitor_param_setter import StatMonitorParamSetter
from prototrain.callbacks.stop_after import StopAfter
from prototrain.callbacks.stop_on_nan import StopOnNaN
from prototrain.callbacks.summaries import Summaries
from prototrain.callbacks.tensorboard_writer import TensorBoardWriter
from prototrain.callbacks.throughput_tracker import ThroughputTracker
from prototrain.callbacks.trigger import PeriodicTrigger
from prototrain.callbacks.validation import Validation

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
    "averaged_weights",
]
