"""Handwritten digits: the smallest complete model.

A model is a package with these three names; `prototrain run models.simple` needs nothing else. The name
`models.simple.config` is the `Config`; it hides the module config.py.
"""

from .config import config as config
from .datasets import datasets as datasets
from .definition import build as build

__all__ = ["build", "config", "datasets"]
