"""What has changed of the training data since a position was saved, by the fingerprints of then and now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from prototrain.data.pipeline import first_difference
from prototrain.data.positions import Position

OTHER_DATA = (
    "the training data did not repeat: its first batch is another one (have its files changed, or does its code draw "
    "random numbers?)"
)
OTHER_SIZES = "files of the training data have other sizes than they had"
OTHER_NAMES = "the names of its files are not what they were"


class Changes(NamedTuple):
    """What differs, in words.

    Attributes:
        refused: a resume needs leave to start a new pass.
        lost: a resume starts a new pass.
        doubt: a resume keeps the place, and what follows may differ; or None.
    """

    refused: list[str]
    lost: list[str]
    doubt: str | None


def changes_of(then: Mapping[str, Any], now: Mapping[str, Any], position: type[Position]) -> Changes:
    """Compare two fingerprints; see `TrainingData.fingerprint`.

    Args:
        then: as it was saved with a position.
        now: of the data that is there.
        position: the class of the position.
    """
    keys = ("elements", "batches per pass", "batch size", "seed", "mode")
    found = {key: f"{key} was {then.get(key)} and is {now[key]}" for key in keys if then.get(key) != now[key]}
    if (difference := first_difference(then.get("stages", []), now["stages"])) is not None:
        found["stages"] = difference
    elif then.get("file names") != now["file names"]:
        found["file names"] = OTHER_NAMES
    elif then.get("directory") != now["directory"] and position.names_files:
        found["directory"] = f"its files are in {now['directory']}, and the saved position reads {then['directory']}"
    kept = ("mode", "directory") if position.keeps_place else tuple(key for key in found if key != "elements")
    refused = [words for key, words in found.items() if key not in kept]
    lost = [words for key, words in found.items() if key in kept]
    doubt = OTHER_SIZES if then.get("file sizes") != now["file sizes"] else None
    return Changes(refused, lost, doubt)


def other_first_batch(then: str | None, now: str | None) -> str | None:
    """What the digests of a first batch say, where they are known."""
    return OTHER_DATA if None not in (then, now) and then != now else None
