"""Renders the sample catalogue: images of synthetic products, in the layout of Stanford Online Products.

Each class is a silhouette of a few parts. Products differ in proportions, two colors and a print; their views differ
has another place, turn, light and background. So pictures that resemble each other as a whole are mostly of
different products: a network has to learn what belongs to the product.

`python -m models.ranker.sample DIRECTORY` writes it to a directory; the model does so when it first needs it.
The same version of NumPy gives the same pictures.
"""

from __future__ import annotations

import colorsys
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

Array: TypeAlias = np.ndarray[Any, Any]
Shape: TypeAlias = Callable[[Array, Array, Array], list[tuple[Array, int]]]

SEED = 7
SIZE = 48  # pixels
SUPERSAMPLING = 2
_REACH = 1.2  # of a picture, from its middle
VIEWS = 5
TRAINING_PRODUCTS, TEST_PRODUCTS = 60, 16  # of each class

# In coordinates from -1 to 1, y downwards. A part is a signed distance, negative inside, and the number of its color.
# `p` holds a product's own proportions, each from 0 to 1.


def _box(x: Array, y: Array, cx: float, cy: float, w: float, h: float) -> Array:
    return np.maximum(np.abs(x - cx) - w, np.abs(y - cy) - h)


def _disc(x: Array, y: Array, cx: float, cy: float, rx: float, ry: float) -> Array:
    return (np.hypot((x - cx) / rx, (y - cy) / ry) - 1.0) * min(rx, ry)


def _cone(x: Array, y: Array, top: float, bottom: float, from_y: float, to_y: float) -> Array:
    """Symmetric about x = 0, with half widths `top` and `bottom`."""
    half = top + (bottom - top) * np.clip((y - from_y) / (to_y - from_y), 0.0, 1.0)
    return np.maximum(np.abs(x) - half, np.maximum(from_y - y, y - to_y))


def _ring(distance: Array, width: float) -> Array:
    return np.abs(distance) - width


def mug(x: Array, y: Array, p: Array) -> list[tuple[Array, int]]:
    w, h = 0.32 + 0.2 * p[0], 0.4 + 0.3 * p[1]
    handle = _ring(_disc(x, y, w, 0.0, 0.2 + 0.15 * p[2], 0.2 + 0.25 * p[3]), 0.07)
    return [(handle, 1), (_cone(x, y, w, w * (0.7 + 0.3 * p[4]), -h, h), 0)]


def lamp(x: Array, y: Array, p: Array) -> list[tuple[Array, int]]:
    top, height = 0.1 + 0.3 * p[0], 0.4 + 0.35 * p[1]
    foot = _box(x, y, 0.0, 0.8, 0.2 + 0.3 * p[2], 0.06)
    return [(_box(x, y, 0.0, 0.4, 0.04 + 0.05 * p[3], 0.45), 1), (foot, 1),
            (_cone(x, y, top, 0.45 + 0.3 * p[4], -0.85, -0.85 + height + 0.2), 0)]  # fmt: skip


def bottle(x: Array, y: Array, p: Array) -> list[tuple[Array, int]]:
    w, shoulder = 0.22 + 0.18 * p[0], -0.4 + 0.45 * p[1]
    neck = _box(x, y, 0.0, -0.5, 0.07 + 0.08 * p[2], 0.4)
    cap = _box(x, y, 0.0, -0.88, 0.1 + 0.08 * p[3], 0.08)
    return [(neck, 0), (_cone(x, y, 0.1, w, shoulder - 0.25, shoulder), 0), (_box(x, y, 0.0, (shoulder + 0.9) / 2, w,
            (0.9 - shoulder) / 2), 0), (cap, 1)]  # fmt: skip


def chair(x: Array, y: Array, p: Array) -> list[tuple[Array, int]]:
    w, seat = 0.35 + 0.2 * p[0], 0.0 + 0.25 * p[1]
    back = _box(x, y, 0.0, (seat - 0.9) / 2, w * (0.7 + 0.3 * p[2]), (seat + 0.9) / 2)
    legs = np.minimum(_box(x, y, -w + 0.06, 0.6, 0.06, 0.35), _box(x, y, w - 0.06, 0.6, 0.06, 0.35))
    return [(back, 0), (legs, 1), (_box(x, y, 0.0, seat + 0.1, w + 0.08, 0.08 + 0.1 * p[3]), 1)]


def table(x: Array, y: Array, p: Array) -> list[tuple[Array, int]]:
    w, top = 0.55 + 0.35 * p[0], -0.35 + 0.4 * p[1]
    at = w * (0.35 + 0.5 * p[2])
    legs = np.minimum(_box(x, y, -at, 0.35, 0.07, 0.45), _box(x, y, at, 0.35, 0.07, 0.45))
    return [(legs, 1), (_box(x, y, 0.0, top, w, 0.12 + 0.2 * p[3]), 0)]


def kettle(x: Array, y: Array, p: Array) -> list[tuple[Array, int]]:
    r = 0.4 + 0.15 * p[0]
    spout = np.maximum(np.abs(y + 0.1 + 0.6 * (x + r)) - 0.1 - 0.06 * p[1], np.abs(x + r) - 0.32)
    handle = _ring(_disc(x, y, 0.0, -0.35, r * (0.6 + 0.3 * p[2]), 0.3 + 0.2 * p[3]), 0.06)
    return [(handle, 1), (spout, 1), (_disc(x, y, 0.0, 0.2, r, 0.4 + 0.2 * p[4]), 0)]


def shirt(x: Array, y: Array, p: Array) -> list[tuple[Array, int]]:
    w, sleeve = 0.3 + 0.2 * p[0], 0.3 + 0.3 * p[1]
    sleeves = np.maximum(np.abs(y + 0.45 - (0.4 + 0.8 * p[2]) * np.abs(x)) - 0.2, np.abs(x) - w - sleeve)
    neck = _disc(x, y, 0.0, -0.72, 0.14 + 0.12 * p[3], 0.2)
    return [(sleeves, 1), (np.maximum(_cone(x, y, w, w * (0.9 + 0.4 * p[4]), -0.7, 0.8), -neck), 0)]


def shoe(x: Array, y: Array, p: Array) -> list[tuple[Array, int]]:
    length = 0.6 + 0.25 * p[0]
    shaft = _box(x, y, -length + 0.28, -0.1 - 0.25 * p[1], 0.26, 0.3 + 0.3 * p[1])
    sole = _box(x, y, 0.0, 0.52, length, 0.07 + 0.1 * p[2])
    return [(shaft, 0), (np.maximum(_disc(x, y, 0.0, 0.45, length, 0.35 + 0.25 * p[3]), y - 0.5), 0), (sole, 1)]


CLASSES: dict[str, Shape] = {
    shape.__name__: shape for shape in (bottle, chair, kettle, lamp, mug, shirt, shoe, table)
}  # fmt: skip


def _print(x: Array, y: Array, kind: int, frequency: float, angle: float) -> Array:
    """The share of the second color on a product's body, from 0 to 1."""
    a, b = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    waves = {
        0: np.full_like(x, -1.0),
        1: np.sin(frequency * a),
        2: np.sin(frequency * a) * np.sin(frequency * b),
        3: 0.55 - np.hypot((frequency * a / 3.0 + 0.5) % 1.0 - 0.5, (frequency * b / 3.0 + 0.5) % 1.0 - 0.5) * 2.2,
        4: np.where(np.abs(a) < 0.18, 1.0, -1.0),
    }
    return np.clip(waves[kind] * 4.0 + 0.5, 0.0, 1.0)


class Product:
    """The properties that all views of a product share.

    Args:
        shape: the silhouette of its class.
        random: the generator of its features.
    """

    def __init__(self, shape: Shape, random: np.random.Generator) -> None:
        self._shape = shape
        self._proportions = random.uniform(size=5)
        hue = random.uniform()
        hues = [hue, hue + random.uniform(0.15, 0.85)]
        self._colors = [
            np.array(colorsys.hsv_to_rgb(h % 1.0, random.choice([0.4, 0.7, 0.95]), random.choice([0.45, 0.7, 0.95])))
            for h in hues
        ]
        self._print = (
            int(random.integers(5)),
            float(random.choice([7.0, 12.0])),
            float(random.integers(4)) * np.pi / 4,
        )

    def paint(self, x: Array, y: Array, picture: Array) -> Array:
        """Draw the product over an image, float [h, w, 3] in 0..1; x and y are the coordinates of each pixel."""
        one, two = self._colors
        mix = _print(x, y, *self._print)[..., None]
        surfaces = [one * (1.0 - mix) + two * mix, np.broadcast_to(two, picture.shape)]
        for distance, number in self._shape(x, y, self._proportions):
            cover = np.clip(0.5 - distance * SIZE * SUPERSAMPLING / (2 * _REACH), 0.0, 1.0)[..., None]
            edge = np.clip(1.0 + distance * 6.0, 0.6, 1.0)[..., None]  # rounded: parts are darker near their rims
            picture = picture * (1.0 - cover) + surfaces[number] * (1.6 - edge) * cover
        return picture


def view(product: Product, random: np.random.Generator) -> Array:
    """Render one image, uint8 [SIZE, SIZE, 3]."""
    grid = np.linspace(-_REACH, _REACH, SIZE * SUPERSAMPLING)
    x, y = np.meshgrid(grid, grid)
    picture = _background(x, y, random)
    angle, zoom = random.uniform(-0.3, 0.3), random.uniform(0.85, 1.1)
    u, v = (x - random.uniform(-0.15, 0.15)) * zoom, (y - random.uniform(-0.15, 0.15)) * zoom
    u, v = np.cos(angle) * u + np.sin(angle) * v, np.cos(angle) * v - np.sin(angle) * u
    u = u / random.uniform(0.8, 1.0) * random.choice([-1.0, 1.0])  # seen from the side, from the left or the right
    picture = product.paint(u, v, picture)
    light = random.uniform(0.75, 1.1) * random.uniform(0.92, 1.08, size=3)
    slope = random.uniform(-0.2, 0.2, size=2)
    picture = picture * light * (1.0 + slope[0] * x + slope[1] * y)[..., None]
    small = picture.reshape(SIZE, SUPERSAMPLING, SIZE, SUPERSAMPLING, 3).mean((1, 3))
    small = small + random.normal(scale=0.02, size=small.shape)
    return (np.clip(small, 0.0, 1.0) * 255.0).round().astype(np.uint8)


def _background(x: Array, y: Array, random: np.random.Generator) -> Array:
    one, two = random.uniform(size=(2, 3))
    angle = random.uniform(0.0, 2 * np.pi)
    mix = np.clip(0.5 + 0.4 * (np.cos(angle) * x + np.sin(angle) * y), 0.0, 1.0)[..., None]
    picture = one * mix + two * (1.0 - mix)
    for _ in range(random.integers(1, 4)):  # clutter
        cx, cy, w, h = *random.uniform(-_REACH, _REACH, size=2), *random.uniform(0.1, 0.5, size=2)
        distance = (_box if random.uniform() < 0.5 else _disc)(x, y, cx, cy, w, h)
        picture = np.where(distance[..., None] < 0.0, random.uniform(size=3), picture)
    return picture


def render(directory: Path) -> None:
    """Write the catalogue atomically: `Ebay_train.txt`, `Ebay_test.txt` and a folder for each class."""
    temporary = directory.with_name(f".tmp-{directory.name}-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    lines: dict[str, list[str]] = {"train": [], "test": []}
    number = 0
    try:
        for category, (name, shape) in enumerate(CLASSES.items(), 1):
            (temporary / f"{name}_final").mkdir(parents=True)
            for index in range(TRAINING_PRODUCTS + TEST_PRODUCTS):
                number += 1
                random = np.random.default_rng([SEED, number])
                product = Product(shape, random)
                for view_number in range(VIEWS):
                    path = f"{name}_final/{number:06d}_{view_number}.JPG"
                    jpeg = tf.io.encode_jpeg(view(product, random), quality=92)
                    (temporary / path).write_bytes(jpeg.numpy())
                    part = "train" if index < TRAINING_PRODUCTS else "test"
                    lines[part].append(f"{number} {category} {path}")
        for part, entries in lines.items():
            rows = [f"{row} {entry}\n" for row, entry in enumerate(entries, 1)]
            text = "image_id class_id super_class_id path\n" + "".join(rows)
            (temporary / f"Ebay_{part}.txt").write_text(text, encoding="utf-8")
        try:
            temporary.rename(directory)
        except OSError:
            if not directory.is_dir():  # else another process was faster
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    render(Path(sys.argv[1]))
