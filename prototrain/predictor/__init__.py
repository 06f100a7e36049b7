"""Using a model while it is being trained, or after: one call, many small requests from threads, a whole dataset."""

from prototrain.predictor.asynchronous import AsyncPredictor
from prototrain.predictor.dataset import DatasetPredictor
from prototrain.predictor.predictor import Predictor

__all__ = ["AsyncPredictor", "DatasetPredictor", "Predictor"]
