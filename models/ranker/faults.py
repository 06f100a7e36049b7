"""What may be wrong with a catalogue's pictures: found, named, and left out or refused as the config says."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from prototrain.errors import ConfigError, DataError
from prototrain.system.tracebacks import cause

from .config import config
from .layouts import Picture, Shop
from .pictures import decode

_NAMED = 5  # of what was found, in a message


def usable(shop: Shop, pictures: list[Picture]) -> list[Picture]:
    """The pictures that are there and can be decoded.

    Raises:
        DataError: others are in the list, and the config says to refuse them; the message names them.
    """
    empty = {name for name, path in shop.class_folders.items() if not any(entry.is_file() for entry in path.rglob("*"))}
    _settle("data.on_empty_class", "class folders hold no picture", sorted(empty))
    found = [picture for picture in pictures if picture.category not in empty]
    missing = {picture.path for picture in found if not (shop.directory / picture.path).is_file()}
    _settle("data.on_missing_picture", f"listed pictures are not in {shop.directory}", sorted(missing))
    found = [picture for picture in found if picture.path not in missing]
    broken = _broken(shop, found) if config["data.check_pictures"] else {}
    _settle("data.on_broken_picture", "pictures cannot be decoded", [f"{p} ({why})" for p, why in broken.items()])
    return [picture for picture in found if picture.path not in broken]


def paired(pictures: list[Picture]) -> list[Picture]:
    """The pictures of products that have more than one.

    Raises:
        DataError: as `usable`.
    """
    counts = Counter(picture.product for picture in pictures)
    single = [product for product, count in counts.items() if count == 1]
    _settle("data.on_single_picture", "products have a single picture", single)
    return [picture for picture in pictures if counts[picture.product] > 1]


def answerable(queries: list[Picture], catalogue: list[Picture]) -> list[Picture]:
    """The queries for which there is another picture of their product in the catalogue.

    Raises:
        DataError: as `usable`.
    """
    paths = {picture.path for picture in catalogue}
    counts = Counter(picture.product for picture in catalogue)
    alone = [picture for picture in queries if counts[picture.product] <= (picture.path in paths)]
    products = list(dict.fromkeys(picture.product for picture in alone))
    _settle("data.on_single_picture", "queried products have no other picture in the catalogue", products)
    left_out = set(products)
    return [picture for picture in queries if picture.product not in left_out]


def _broken(shop: Shop, pictures: Iterable[Picture]) -> dict[str, str]:
    """Why pictures cannot be decoded, by path."""

    def problem(picture: Picture) -> str | None:
        try:
            decode(str(shop.directory / picture.path))
        except tf.errors.OpError as error:
            return cause(error)
        return None

    pictures = list(pictures)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = list(pool.map(problem, pictures))
    return {picture.path: why for picture, why in zip(pictures, problems, strict=True) if why is not None}


def _settle(key: str, what: str, names: list[str]) -> None:
    if config[key] not in ("refuse", "skip"):
        raise ConfigError(f'{key}: expected "refuse" or "skip", got {config[key]!r}')
    if not names:
        return
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    found = f"{len(names)} {what}: {', '.join(names[:_NAMED])}{more}"
    if config[key] == "refuse":
        raise DataError(f"{found}; {key}=skip leaves them out")
    print(f"left out: {found}")
