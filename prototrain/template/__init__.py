"""Two spirals: a small model to begin one of your own from.

`prototrain run` finds in a model's package `config`, `datasets` and `build`, and `callbacks` if there are any.
"""

from .callbacks import callbacks as callbacks
from .config import config as config
from .datasets import datasets as datasets
from .definition import build as build

__all__ = ["build", "callbacks", "config", "datasets"]
