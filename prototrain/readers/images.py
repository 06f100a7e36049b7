"""A reader of image folders that have one directory for each class."""

from __future__ import annotations

import os
from collections.abc import Sequence

import tensorflow as tf

from prototrain.errors import DataError
from prototrain.readers.order import PARALLEL, Shuffle, is_by_index, random_order
from prototrain.readers.paths import display_path
from prototrain.system.files import PathLike, joined, local_path, url_of
from prototrain.system.storage import Storage, downloaded_all

IMAGE_EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
_FIRST_BYTES = [b"BM", b"GI", b"\xff\xd8", b"\x89P", b"RI", b"\xff\n", b"\0\0"]  # of what TensorFlow decodes


def class_names(path: PathLike) -> list[str]:
    """Return the classes of an image folder: its directory names, sorted. Labels of `image_folder` are indices into it.

    Raises:
        DataError: the folder cannot be read, or has no directories.
    """
    url = url_of(path)
    try:
        if url is not None:
            names = sorted({name.partition("/")[0] for name in Storage(url).listing() if "/" in name})
        else:
            entries = os.scandir(local_path(path))
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{display_path(path)}: cannot be read as a directory of images ({error.strerror})") from error
    if not names:
        raise DataError(f"{url or display_path(path)}: holds no directories; an image folder has one for each class")
    return names


def image_files(path: PathLike) -> list[str]:
    """Return the sorted paths of the images in a directory: files with one of the `IMAGE_EXTENSIONS`, in any case.

    Images at a URL are downloaded. Hidden files are left out.

    Raises:
        DataError: the directory cannot be read.
    """
    url = url_of(path)
    if url is None:
        try:
            found = list(local_path(path).iterdir())
        except OSError as error:
            raise DataError(f"{display_path(path)}: cannot be read as a directory ({error.strerror})") from error
        return sorted(str(file) for file in found if _is_image(file.name) and file.is_file())
    marks = {name: mark for name, mark in sorted(Storage(url).listing().items()) if _is_image(name)}
    return list(map(str, downloaded_all(url, marks)))


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS) and "/" not in name and not name.startswith(".")


def image_folder(
    path: PathLike,
    *,
    size: tuple[int, int],
    channels: int = 3,
    classes: Sequence[str] | None = None,
    shuffle: Shuffle = None,
) -> tf.data.Dataset:
    """Read a directory that has one subdirectory of images for each class.

    When this is called, only the file names are read: those of the `IMAGE_EXTENSIONS`, in any case. Animated images
    contribute their first frame.

    Args:
        path: the directory; images below a URL are downloaded.
        size: (height, width) to resize every image to, without keeping its aspect ratio.
        channels: 1 for grey, 3 for RGB, 4 for RGBA.
        classes: the directory names in the order of their labels, such as `class_names("data/trn")`. Set it to make the
            labels of several folders agree even if one lacks a class. By default, the sorted directory names.
        shuffle: "index" returns a new order in every epoch. By default, class after class, sorted by name.

    Returns:
        A dataset of `{"image": float32 [height, width, channels] in 0..1, "label": int32 []}`.

    Raises:
        DataError: the directory or one of its classes is missing or empty, or `classes` does not fit.
        StorageError: images at a URL cannot be downloaded.
    """
    if not isinstance(size, Sequence) or len(size) != 2 or channels not in (1, 3, 4):
        raise DataError(f"size must be (height, width) and channels 1, 3 or 4, not {size!r} and {channels!r}")
    files: list[str] = []
    labels: list[int] = []
    by_class = {name: image_files(joined(path, name)) for name in class_names(path)}
    numbered = list(by_class) if classes is None else list(classes)
    if len(set(numbered)) < len(numbered):
        raise DataError(f"classes={numbered} has a name twice")
    if unknown := [name for name in by_class if name not in numbered]:
        raise DataError(f"{display_path(path)}: the directory {unknown[0]!r} is not in classes={numbered}")
    for name, found in by_class.items():
        if not found:
            kinds = " ".join(IMAGE_EXTENSIONS)
            raise DataError(f"{display_path(joined(path, name))}: holds no images ({kinds}); add some or remove it")
        files += found
        labels += [numbered.index(name)] * len(found)

    def decode(file: tf.Tensor, label: tf.Tensor) -> dict[str, tf.Tensor]:
        data = tf.io.read_file(file)
        is_known = tf.reduce_any(tf.equal(tf.strings.substr(data, 0, 2), _FIRST_BYTES))
        with tf.control_dependencies([tf.debugging.Assert(is_known, ["this file is not an image:", file])]):
            return {"image": decode_image(tf.identity(data), size=size, channels=channels), "label": label}

    if is_by_index(shuffle):
        with tf.device("/cpu:0"):
            all_files, all_labels = tf.constant(files), tf.constant(labels)

        def read(number: tf.Tensor) -> dict[str, tf.Tensor]:
            return decode(all_files[number], all_labels[number])

        return random_order(len(files), read, about="images", files=files, each=None)
    return tf.data.Dataset.from_tensor_slices((files, labels)).map(decode, **PARALLEL)


def decode_image(data: tf.Tensor, *, size: tuple[int, int], channels: int = 3) -> tf.Tensor:
    """Decode and resize a BMP, GIF, JPEG or PNG image; traced or eager.

    Args:
        data: the content of the file, a string scalar; only the first frame of an animated image is used.
        size: (height, width) of the result; the aspect ratio is not kept.
        channels: 1 for grey, 3 for RGB, 4 for RGBA.

    Returns:
        float32 [height, width, channels] in 0..1.
    """
    image = tf.io.decode_image(data, channels=channels, expand_animations=False)
    image.set_shape([None, None, channels])
    return tf.clip_by_value(tf.image.resize(image, size, antialias=True) / 255.0, 0.0, 1.0)  # resizing can overshoot
