"""A generator of handwritten digits and its discriminator: two losses, two optimizers.

`prototrain run models.gan --trainer models.gan.trainer:GANTrainer`
"""

from .config import config as config
from .datasets import datasets as datasets
from .definition import build as build

__all__ = ["build", "config", "datasets"]
