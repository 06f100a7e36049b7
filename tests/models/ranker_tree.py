"""Tiny catalogues for the tests of models.ranker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from models.ranker.config import config as ranker_config
from prototrain import Config

CLASSES = ("mug_final", "lamp_final")
PRODUCTS, VIEWS = 8, 3  # of each class


def picture(path: Path, color: tuple[int, int, int], *, size: tuple[int, int] = (24, 24), noise: int = 0) -> None:
    """Write a JPEG of one color, with noise from the given seed."""
    pixels = np.full((*size, 3), color, np.int32) + np.random.default_rng(noise).integers(-20, 20, (*size, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tf.io.encode_jpeg(pixels.clip(0, 255).astype(np.uint8), quality=95).numpy())


def write_stanford(directory: Path) -> Path:
    """A tree in the layout of Stanford Online Products: 2 classes, 16 products to train with and 16 to test."""
    colors = np.random.default_rng(3).integers(0, 255, (2 * len(CLASSES) * PRODUCTS, 3))
    product = 0
    for part in ("train", "test"):
        lines = ["image_id class_id super_class_id path"]
        for number, name in enumerate(CLASSES, 1):
            for _ in range(PRODUCTS):
                product += 1
                for view in range(VIEWS):
                    path = f"{name}/{product}_{view}.JPG"
                    picture(directory / path, tuple(colors[product - 1]), noise=10 * product + view)
                    lines.append(f"{len(lines)} {product} {number} {path}")
        (directory / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")
    return directory


@contextmanager
def tiny(directory: Path) -> Iterator[Config]:
    """The model's config for a tiny run with experiments below a directory; restored afterwards."""
    before = dict(ranker_config)
    ranker_config.update(
        {
            "trainer.experiment_base_dir": str(directory / "experiments"),
            "trainer.summary_save_interval": 2,
            "model.batch_size": 8,
            "model.num_steps": 4,
            "model.backbone.name": "convnet",
            "model.backbone.filters": [4, 8],
            "model.picture_size": [16, 16],
            "data.layout": "stanford_online_products",
            "evaluate.batch_size": 16,
            "evaluate.block": 7,
        }
    )
    try:
        yield ranker_config
    finally:
        ranker_config.clear()
        ranker_config.update(before)


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    with tiny(tmp_path) as settings:
        yield settings


@pytest.fixture(scope="module")
def stanford(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalogue for reading only."""
    return write_stanford(tmp_path_factory.mktemp("stanford"))
