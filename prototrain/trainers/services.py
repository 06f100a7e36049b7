"""An earlier name: what `TrainerServices` offered, `Trainer` does itself."""

from prototrain.trainers.base import Trainer as TrainerServices
from prototrain.trainers.run_length import ENDLESS

__all__ = ["ENDLESS", "TrainerServices"]
