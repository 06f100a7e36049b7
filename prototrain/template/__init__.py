"""Two spirals: a small model to start your own from.

`prototrain run` uses `config`, `datasets`, `build` and the optional `callbacks` of a model's package.
"""

from .callbacks import callbacks as callbacks
from .config import config as config
from .datasets import datasets as datasets
from .definition import build as build

__all__ = ["build", "callbacks", "config", "datasets"]
