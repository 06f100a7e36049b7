"""A convolutional network from a list of layers in the config, for images from folders or TFRecord shards."""

from .config import config as config
from .datasets import datasets as datasets
from .definition import build as build

__all__ = ["build", "config", "datasets"]
