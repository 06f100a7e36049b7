"""Missing and broken images: named, and skipped or refused as configured."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from prototrain.errors import ConfigError, DataError

from .config import config
from .layouts import Picture, Shop
from .pictures import decode

_NAMED = 5  # of what was found, in a message


def usable(shop: Shop, pictures: list[Picture]) -> list[Picture]:
    """Return the images that can be decoded, of products with more than one image.

    Raises:
        DataError: there are other images in the list, and the config refuses them.
    """

    def is_faulty(picture: Picture) -> bool:
        try:
            decode(str(shop.directory / picture.path))
        except tf.errors.OpError:
            return True
        return False

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        faulty = {picture for picture, found in zip(pictures, pool.map(is_faulty, pictures), strict=True) if found}
    how = config["data.on_faulty_picture"]
    if how not in ("refuse", "skip"):
        raise ConfigError(f'data.on_faulty_picture: expected "refuse" or "skip", got {how!r}')
    if faulty:
        names = sorted(picture.path for picture in faulty)
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        found = f"{len(names)} pictures are missing or cannot be decoded: {', '.join(names[:_NAMED])}{more}"
        if how == "refuse":
            raise DataError(f"{found}; data.on_faulty_picture=skip leaves them out")
        print(f"left out: {found}")
    kept = [picture for picture in pictures if picture not in faulty]
    counts = Counter(picture.product for picture in kept)
    return [picture for picture in kept if counts[picture.product] > 1]
