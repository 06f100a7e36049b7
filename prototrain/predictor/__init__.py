"""Predictors for single batches, for whole datasets, and for concurrent requests of single examples."""

from prototrain.predictor.asynchronous import AsyncPredictor
from prototrain.predictor.predictor import DatasetPredictor, Predictor

__all__ = ["AsyncPredictor", "DatasetPredictor", "Predictor"]
