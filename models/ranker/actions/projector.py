"""The catalogue's embeddings for TensorBoard's projector, with their classes, products and pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorboard.plugins.projector import ProjectorConfig

from prototrain.system.files import write_atomic

from ..config import picture_size, positive
from ..layouts import Picture
from ..pictures import WHOLE, plain
from .outcome import Outcome
from .retrieval import Array

_SIDE = 48  # pixels of a picture, at most: TensorBoard takes a sheet of up to 8192 x 8192


def write_projector(directory: Path, outcome: Outcome, embeddings: Array) -> None:
    """Write what the projector shows into a directory that TensorBoard is started with.

    Args:
        directory: such as the experiment's summaries.
        outcome: of the search.
        embeddings: of its catalogue, float32 [pictures, units].

    Raises:
        OSError: a file cannot be written.
    """
    kept = choose(outcome.catalogue, positive("evaluate.projected"))
    pictures = [outcome.catalogue[index] for index in kept]
    files = directory / "projector"
    files.mkdir(parents=True, exist_ok=True)
    rows = ["\t".join(f"{value:.6g}" for value in embeddings[index]) for index in kept]
    write_atomic(files / "embeddings.tsv", "\n".join(rows) + "\n")
    labels = ["\t".join((picture.category, picture.product, picture.path)) for picture in pictures]
    write_atomic(files / "metadata.tsv", "\n".join(["class\tproduct\tpicture", *labels]) + "\n")
    side = min(_SIDE, *picture_size())
    write_atomic(files / "sprite.png", _sheet(outcome.directory, pictures, side))
    settings = ProjectorConfig()
    entry = settings.embeddings.add(tensor_name="catalogue", tensor_path="projector/embeddings.tsv")
    entry.metadata_path = "projector/metadata.tsv"
    entry.sprite.image_path = "projector/sprite.png"
    entry.sprite.single_image_dim.extend([side, side])
    write_atomic(directory / "projector_config.pbtxt", str(settings))


def choose(pictures: list[Picture], most: int) -> list[int]:
    """The numbers of at most about so many pictures: all pictures of every n-th product."""
    number = {product: n for n, product in enumerate(dict.fromkeys(picture.product for picture in pictures))}
    every = -(-len(pictures) // most)
    return [index for index, picture in enumerate(pictures) if number[picture.product] % every == 0]


def _sheet(directory: Path, pictures: list[Picture], side: int) -> bytes:
    """All pictures in one PNG, row by row in a square."""
    columns = int(np.ceil(np.sqrt(len(pictures))))
    sheet = np.zeros((columns, columns, side, side, 3), np.uint8)
    for number, picture in enumerate(pictures):
        seen = plain(str(directory / picture.path), tf.constant(picture.box or WHOLE))
        sheet[number // columns, number % columns] = tf.image.resize(seen, [side, side], antialias=True).numpy().round()
    joined = sheet.transpose(0, 2, 1, 3, 4).reshape(columns * side, columns * side, 3)
    return tf.io.encode_png(joined).numpy()
