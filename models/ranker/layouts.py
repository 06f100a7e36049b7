"""Catalogues on disk, in the official layout of Stanford Online Products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from prototrain.errors import ConfigError, DataError

from .config import config, is_sample
from .sample import render

SAMPLE = Path(__file__).parent / "data" / "catalogue"


class Picture(NamedTuple):
    """One picture of a product.

    Attributes:
        path: below the shop's directory.
        product: its id in the list file.
        category: the class of the product.
    """

    path: str
    product: str
    category: str


@dataclass(frozen=True)
class Shop:
    """The pictures of a data set.

    Attributes:
        directory: the directory that paths are relative to.
        trn: images for training, of other products than the catalogue.
        catalogue: images for the evaluation; each is searched among the others.
    """

    directory: Path
    trn: list[Picture]
    catalogue: list[Picture]


def read_shop() -> Shop:
    """Return the configured catalogue; the sample catalogue is rendered if it does not exist.

    Raises:
        ConfigError: there is no such layout, or the directory is not set.
        DataError: a list file is missing or has a wrong line, or the sample cannot be written.
    """
    layout, directory = config["data.layout"], config["data.directory"]
    if layout not in ("sample", "stanford_online_products"):
        raise ConfigError(f"data.layout: {layout!r} is neither sample nor stanford_online_products")
    if directory is None and not is_sample():
        raise ConfigError(f"data.layout {layout!r} needs data.directory: where its list files are")
    if directory is None and not SAMPLE.is_dir():
        print(f"rendering the sample catalogue into {SAMPLE}, once")
        try:
            render(SAMPLE)
        except OSError as error:
            raise DataError(f"cannot render the sample catalogue into {SAMPLE}: {error.strerror}") from error
    return _stanford_online_products(SAMPLE if directory is None else Path(directory).expanduser())


def _stanford_online_products(directory: Path) -> Shop:
    """`Ebay_train.txt` and `Ebay_test.txt` next to the folders of pictures, one for each class.

    Each of the test pictures is a query, to which the others are the catalogue.
    https://cvgl.stanford.edu/projects/lifted_struct/
    """

    def pictures(name: str) -> list[Picture]:
        return [
            Picture(path, product, Path(path).parent.name.removesuffix("_final"))
            for _, product, _, path in _rows(directory / name, columns=4)
        ]

    return Shop(directory, pictures("Ebay_train.txt"), pictures("Ebay_test.txt"))


def _rows(path: Path, *, columns: int) -> Iterator[list[str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DataError(f"data.directory: {path} cannot be read: {why}") from error
    for number, line in enumerate(lines[1:], 2):
        row = line.split()
        if row and len(row) != columns:
            raise DataError(f"{path}:{number}: expected {columns} columns, got {len(row)}: {line[:80]!r}")
        if row:
            yield row
