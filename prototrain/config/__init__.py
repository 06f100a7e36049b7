"""A run's settings: a dictionary of dotted keys, what the engine knows of them, and how they are written as JSON.

Needs no TensorFlow.
"""

from prototrain.config.config import UNSET_TEXT, Config, ConfigKeyError, differing
from prototrain.config.json_form import FUNCTIONS_KEY

__all__ = ["FUNCTIONS_KEY", "UNSET_TEXT", "Config", "ConfigKeyError", "differing"]
