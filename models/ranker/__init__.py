"""Visual search: embeddings in which pictures of one product are near each other, learnt with triplets mined online.

A model is a package with these three names; `prototrain run models.ranker` needs nothing else.
"""

from .config import config as config
from .datasets import datasets as datasets
from .definition import build as build

__all__ = ["build", "config", "datasets"]
