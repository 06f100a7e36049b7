"""A run's settings: a dictionary of dotted keys, what the engine knows of them, and how they are written as JSON.

Needs no TensorFlow.
"""

from prototrain.config.config import FUNCTIONS_KEY, Config, ConfigKeyError, differing

__all__ = ["FUNCTIONS_KEY", "Config", "ConfigKeyError", "differing"]
