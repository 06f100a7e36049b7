"""Visual search: embeddings in which images of one product are close, trained with triplets mined online.

A model is a package with these three names; `prototrain run models.ranker` needs nothing else.
"""

from .config import config as config
from .datasets import datasets as datasets
from .definition import build as build

__all__ = ["build", "config", "datasets"]
