"""Sources of images, each as the bytes of a BMP, GIF, JPEG or PNG file with a label."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from models.simple.datasets import read as read_digits
from prototrain import readers
from prototrain.errors import DataError
from prototrain.system.tracebacks import cause

SPLITS = ("trn", "vld", "tst")
PARALLEL: Any = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}

_NAMED = 5  # of what was found, in a message


class Source(Protocol):
    """Images of several splits.

    Attributes:
        splits: the available names of `SPLITS`.
        classes: the names of the classes; a label is an index into them.
    """

    splits: list[str]
    classes: list[str]

    def encoded(self, split: str, *, shuffle: bool) -> tf.data.Dataset:
        """Return the examples of a split, `{"image": bytes, "label": integer}`; `shuffle` reorders each pass."""


class Digits:
    """The 8x8 digits of `models.simple` as PNG images."""

    def __init__(self) -> None:
        self.splits = list(SPLITS)
        self.classes = [str(digit) for digit in range(10)]

    def encoded(self, split: str, *, shuffle: bool) -> tf.data.Dataset:
        """See `Source`."""
        digits = read_digits(split)

        def encode(digit: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            pixels = tf.round(tf.cast(digit["example"], tf.float32) * (255.0 / 16.0))
            image = tf.reshape(tf.cast(pixels, tf.uint8), [8, 8, 1])
            return {"image": tf.io.encode_png(image), "label": digit["label"]}

        return (digits.shuffle(len(digits)) if shuffle else digits).map(encode, **PARALLEL)


class Folders:
    """Image files in `<directory>/<split>/<class>/`; the folders of `trn` are the classes.

    Args:
        directory: the directory of the splits.
        faults: "refuse" or "skip" for each of `data.on_empty_class`, `data.on_broken_picture` and
            `data.on_unknown_class` (one that `trn` does not have).
        check: whether to decode every file once, to find broken ones.
        channels: the number of channels of decoded images.

    Raises:
        DataError: there is no `trn`, a split is empty, or there is a fault to refuse.
    """

    def __init__(self, directory: Path, *, faults: Mapping[str, str], check: bool, channels: int) -> None:
        self._faults = faults
        if not (directory / "trn").is_dir():
            raise DataError(
                f"data.directory: {directory} has no trn; it must hold trn/<class>/*.png, and so vld and tst"
            )
        self.splits = [split for split in SPLITS if (directory / split).is_dir()]
        found = {split: self._list(directory / split) for split in self.splits}
        if check:
            found = {split: self._without_broken(files, channels) for split, files in found.items()}
        self.classes = sorted({Path(file).parent.name for file in found["trn"]})
        self._files = {split: self._known(directory / split, files) for split, files in found.items()}

    def encoded(self, split: str, *, shuffle: bool) -> tf.data.Dataset:
        """See `Source`. The shuffle is over file names."""
        files = self._files[split]
        number = {name: label for label, name in enumerate(self.classes)}
        labels = [number[Path(file).parent.name] for file in files]
        listed = tf.data.Dataset.from_tensor_slices({"image": files, "label": labels})
        if shuffle:
            listed = listed.shuffle(len(files))
        return listed.map(lambda item: {**item, "image": tf.io.read_file(item["image"])}, **PARALLEL)

    def _list(self, split: Path) -> list[str]:
        files = {name: readers.image_files(split / name) for name in readers.class_names(split)}
        self._settle(
            "data.on_empty_class", "without pictures", [str(split / name) for name in files if not files[name]]
        )
        return [file for found in files.values() for file in found]

    def _without_broken(self, files: list[str], channels: int) -> list[str]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            whys = dict(zip(files, pool.map(lambda file: _why_broken(file, channels), files), strict=True))
        broken = [f"{file} ({why})" for file, why in whys.items() if why is not None]
        self._settle("data.on_broken_picture", "cannot be decoded", broken)
        return [file for file in files if whys[file] is None]

    def _known(self, split: Path, files: list[str]) -> list[str]:
        unknown = sorted({str(Path(file).parent) for file in files if Path(file).parent.name not in self.classes})
        self._settle("data.on_unknown_class", "not among the classes of trn", unknown)
        known = [file for file in files if Path(file).parent.name in self.classes]
        if not known:
            raise DataError(f"{split}: no picture is left")
        return known

    def _settle(self, key: str, what: str, names: list[str]) -> None:
        if not names:
            return
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        found = f"{what}: {', '.join(names[:_NAMED])}{more}"
        if self._faults[key] == "refuse":
            raise DataError(f"{found}; {key}=skip leaves out what is")
        print(f"left out, {found}")


def _why_broken(file: str, channels: int) -> str | None:
    try:
        tf.io.decode_image(tf.io.read_file(file), channels=channels, expand_animations=False)
    except tf.errors.OpError as error:
        return cause(error)
    return None
