"""Predicting with a model during or after training: one call, many small requests from threads, a whole dataset."""

from prototrain.predictor.asynchronous import AsyncPredictor
from prototrain.predictor.predictor import DatasetPredictor, Predictor

__all__ = ["AsyncPredictor", "DatasetPredictor", "Predictor"]
