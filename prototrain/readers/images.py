"""Folders of images, with a directory for each class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.order import PARALLEL, Order, compare_labels, is_by_index, random_order
from prototrain.readers.paths import PathLike, shown
from prototrain.system.storage import Storage, downloaded_all
from prototrain.system.urls import local_path, url_of

IMAGE_EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")


def class_names(path: PathLike) -> list[str]:
    """The classes of an image folder: its directories' names, sorted. A label of `image_folder` is an index into it."""
    url = url_of(path)
    try:
        if url is not None:
            names = sorted({name.partition("/")[0] for name in Storage(url).listing() if "/" in name})
        else:
            entries = os.scandir(local_path(path))
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{shown(path)}: cannot be read as a directory of images ({error.strerror})") from error
    if not names:
        raise DataError(f"{url or shown(path)}: holds no directories; an image folder has one for each class")
    return names


def image_files(path: PathLike, *, extensions: Sequence[str] = IMAGE_EXTENSIONS) -> list[str]:
    """The paths of the images in one directory, sorted: the files with one of these endings, in any case."""
    endings = tuple(ending.lower() for ending in extensions)
    found = Path(path).iterdir()
    return sorted(str(file) for file in found if file.name.lower().endswith(endings) and file.is_file())


def image_folder(
    path: PathLike,
    *,
    size: tuple[int, int],
    channels: int = 3,
    classes: Sequence[str] | None = None,
    extensions: Sequence[str] = IMAGE_EXTENSIONS,
    shuffle: bool | Literal["index"] = False,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Reads a directory that holds one directory of images for each class.

    Only the names are read now. Of an animated image, the first frame is taken.

    Args:
        path: the directory; what lies below a URL is downloaded.
        size: (height, width) that every image is resized to, whatever its proportions.
        channels: 1 for grey, 3 for colour, 4 for colour and opacity.
        classes: names of the directories in the order of their labels, such as `class_names("data/trn")`, so that the
            labels of several folders agree also where one lacks a class. By default those that are there, sorted.
        extensions: endings of the files to take, in any case; other files are passed over.
        shuffle: False gives class after class, sorted by name. "index" and True give another order in every epoch. True
            shuffles names, where `Dataset.shuffle` on the result would hold, and save in every checkpoint, decoded
            images; with "index" checkpoints hold neither.
        seed: of the order; None for the run's.

    Returns:
        A dataset of `{"image": float32 [height, width, channels] in 0..1, "label": int32 []}`.

    Raises:
        DataError: the directory is missing, it or one of its classes is empty, or it has a class that is not in
            `classes`.
        StorageError: images at a URL cannot be downloaded.
    """
    files: list[str] = []
    labels: list[int] = []
    by_class = _by_class(path, extensions)
    numbered = list(by_class) if classes is None else list(classes)
    if unknown := [name for name in by_class if name not in numbered]:
        raise DataError(f"{shown(path)}: the directory {unknown[0]!r} is not in classes={numbered}")
    if len(set(numbered)) < len(numbered):
        raise DataError(f"{shown(path)}: a name is twice in classes={numbered}")
    compare_labels(shown(path), numbered)
    for name, found in by_class.items():
        files += found
        labels += [numbered.index(name)] * len(found)

    def decode(file: tf.Tensor, label: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"image": decode_image(tf.io.read_file(file), size=size, channels=channels), "label": label}

    if shuffle is not True and is_by_index(shuffle):
        with tf.device("/cpu:0"):
            all_files, all_labels = tf.constant(files), tf.constant(labels)
        order = Order(len(files), seed)
        return random_order(
            order, lambda number: decode(all_files[number], all_labels[number]), about="images", files=files, each=None
        )
    listed = tf.data.Dataset.from_tensor_slices((files, labels))
    if shuffle:
        listed = listed.shuffle(len(files), seed=seed)
    return listed.map(decode, **PARALLEL)


def _by_class(path: PathLike, extensions: Sequence[str]) -> dict[str, list[str]]:
    """The images of each class, as files of this machine."""
    url = url_of(path)
    if url is None:
        found = {name: image_files(local_path(path) / name, extensions=extensions) for name in class_names(path)}
    else:
        endings, listing = tuple(ending.lower() for ending in extensions), Storage(url).listing()
        names = sorted(name for name in listing if name.count("/") == 1 and name.lower().endswith(endings))
        paths = dict(zip(names, downloaded_all(url, {name: listing[name] for name in names}), strict=True))
        found = {
            name: [str(paths[file]) for file in names if file.partition("/")[0] == name] for name in class_names(url)
        }
    for name, files in found.items():
        if not files:
            where = shown(local_path(path) / name) if url is None else f"{url}/{name}"
            raise DataError(f"{where}: holds no images ({' '.join(extensions).lower()}); add some or remove it")
    return found


def decode_image(data: tf.Tensor, *, size: tuple[int, int], channels: int = 3) -> tf.Tensor:
    """Decodes the content of a BMP, GIF, JPEG or PNG file and resizes it; traced or eager.

    Args:
        data: the bytes, a string scalar. Of an animated image, the first frame is taken.
        size: (height, width) of the result, whatever the image's proportions.
        channels: 1 for grey, 3 for colour, 4 for colour and opacity.

    Returns:
        float32 [height, width, channels] in 0..1.
    """
    image = tf.io.decode_image(data, channels=channels, expand_animations=False)
    image.set_shape([None, None, channels])
    return tf.clip_by_value(tf.image.resize(image, size, antialias=True) / 255.0, 0.0, 1.0)  # it can overshoot
