"""prototrain: a callback-driven trainer engine for TensorFlow 2."""

from __future__ import annotations

import importlib
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from prototrain.errors import PrototrainError
from prototrain.system.terminal import import_tensorflow

__version__ = "0.1.0"

_HOMES = {
    "AsyncTrainer": "trainers.async_towers",
    "Callback": "callbacks.base",
    "Config": "config",
    "Experiment": "experiment",
    "KerasTrainer": "keras.trainer",
    "ModelDict": "model",
    "MultiWorkerTrainer": "trainers.multi_worker",
    "NoOpTrainer": "trainers.base",
    "SimpleTrainer": "trainers.tower",
    "StopTraining": "errors",
    "SyncParameterServerTrainer": "trainers.replicated",
    "SyncReplicatedTrainer": "trainers.replicated",
    "TowerTrainer": "trainers.tower",
    "Trainer": "trainers.base",
    "current_tower": "towers",
    "default_callbacks": "launch",
    "load_model": "model",
    "sweep": "sweeps.api",
}

__all__ = [
    "AsyncTrainer",
    "Callback",
    "Config",
    "Experiment",
    "KerasTrainer",
    "ModelDict",
    "MultiWorkerTrainer",
    "NoOpTrainer",
    "SimpleTrainer",
    "StopTraining",
    "SyncParameterServerTrainer",
    "SyncReplicatedTrainer",
    "TowerTrainer",
    "Trainer",
    "__version__",
    "current_tower",
    "default_callbacks",
    "load_model",
    "sweep",
]

if TYPE_CHECKING:
    from prototrain.callbacks.base import Callback
    from prototrain.config import Config
    from prototrain.errors import StopTraining
    from prototrain.experiment import Experiment
    from prototrain.keras.trainer import KerasTrainer
    from prototrain.launch import default_callbacks
    from prototrain.model import ModelDict, load_model
    from prototrain.sweeps.api import sweep
    from prototrain.towers import current_tower
    from prototrain.trainers.async_towers import AsyncTrainer
    from prototrain.trainers.base import NoOpTrainer, Trainer
    from prototrain.trainers.multi_worker import MultiWorkerTrainer
    from prototrain.trainers.replicated import SyncParameterServerTrainer, SyncReplicatedTrainer
    from prototrain.trainers.tower import SimpleTrainer, TowerTrainer


def __getattr__(name: str) -> Any:
    # Names are imported on first use, so that `prototrain --help` does not wait for TensorFlow.
    if name not in _HOMES:
        raise AttributeError(f"module 'prototrain' has no attribute {name!r}")
    if name != "Config":
        import_tensorflow()
    module = importlib.import_module(f"prototrain.{_HOMES[name]}")
    return getattr(module, name)


def _show_in_short(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None, *, others: Any = sys.excepthook
) -> None:
    """Exception hook that prints errors of prototrain in one line, like the command line."""
    if not isinstance(error, PrototrainError):
        others(kind, error, trace)
        return
    from prototrain.system.tracebacks import for_terminal

    sys.stderr.write(for_terminal(error))


sys.excepthook = _show_in_short


def __dir__() -> list[str]:
    return sorted(__all__)
