"""The config of a run: a dictionary of dotted keys, the schema of prototrain's own keys, and the JSON form.

This package needs no TensorFlow.
"""

from prototrain.config.config import UNSET_TEXT, Config, ConfigKeyError, differing
from prototrain.config.values import FUNCTIONS_KEY

__all__ = ["FUNCTIONS_KEY", "UNSET_TEXT", "Config", "ConfigKeyError", "differing"]
