"""What has changed of the training data since a place in it was saved, by the fingerprints of then and now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from prototrain.data.pipeline import first_difference
from prototrain.data.position import Position, RestartedPosition

OTHER_DATA = (
    "the training data did not repeat: its first batch is another one (have its files changed, or does its code draw "
    "random numbers?)"
)
OTHER_SIZES = "files of the training data have other sizes than they had"
OTHER_NAMES = "the names of its files, or the directories that they lie in below {directory}, are not what they were"
OTHER_CONSTANTS = "tensors that the functions of the training data use are not what they were"
OTHER_TABLES = "lookup tables that the functions of the training data use have other entries than they had"
_DESCRIPTION = ("pipeline", "whole", "pipeline anywhere", "files", "captured", "tables")


class Changes(NamedTuple):
    """What differs, in words.

    Attributes:
        refused: with these the place cannot be meant any more.
        lost: with these a resume starts a new pass.
        doubt: with this it comes back to the place, and what follows there may not be what followed; or None.
    """

    refused: list[str]
    lost: list[str]
    doubt: str | None


def changes_of(then: Mapping[str, Any], now: Mapping[str, Any], position: type[Position]) -> Changes:
    """Compare two fingerprints; see `TrainingData.fingerprint`.

    Args:
        then: as it was saved with a place.
        now: of the data that is there.
        position: the kind of the place.
    """
    values = {key: value for key, value in now.items() if key not in _DESCRIPTION}
    found = {
        key: f"{key} was {then.get(key)} and is {value}" for key, value in values.items() if value != then.get(key)
    }
    if (difference := _other_pipeline(then, now)) is not None:
        found["pipeline"] = difference
    moved = None if difference else _moved(then, now)
    if moved is not None and position.names_files:
        found["files"] = f"{moved}, and the saved place has their names"
    if then.get("mode") == RestartedPosition.mode and position.keeps_place:
        # By an earlier version, which knew less of the stages and saved no place.
        found = {key: words for key, words in found.items() if key in ("elements", "mode")}
    # Where a resume starts a new pass in any case, all but another form of the batches is harmless.
    refused = [key for key in found if key == "elements" or (key not in ("mode", "files") and position.keeps_place)]
    lost = [words for key, words in found.items() if key not in refused]
    doubt = f"{moved}: what depends on their paths may differ" if moved and position.may_follow_paths else None
    if then.get("captured", now["captured"]) != now["captured"]:
        doubt = doubt or OTHER_CONSTANTS
    if then.get("tables", now["tables"]) != now["tables"]:
        doubt = doubt or OTHER_TABLES
    return Changes([found[key] for key in refused], lost, doubt or _other_sizes(then, now))


def _other_pipeline(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What differs besides the directory of the files."""
    if "whole" not in then:  # by a version that did not look for files
        return first_difference(then["pipeline"], now["pipeline"])
    if then["whole"] == now["whole"]:
        return None
    difference = first_difference(then["pipeline anywhere"], now["pipeline anywhere"])
    if difference is None and then["files"]["below"] != now["files"]["below"]:
        return OTHER_NAMES.format(directory=now["files"]["directory"] or "the root")
    return difference


def _moved(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    if "whole" not in then or then["whole"] == now["whole"]:
        return None
    there, here = (one["files"]["directory"] or "." for one in (then, now))
    return None if there == here else f"its files lie in {here} and not in {there}"


def _other_sizes(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Whether files have other content under the same names: perhaps a record was repaired."""
    was, is_ = then.get("files"), now["files"]
    return OTHER_SIZES if was and was["below"] == is_["below"] and was["sizes"] != is_["sizes"] else None


def other_first_batch(then: str | None, now: str | None) -> str | None:
    """What the digests of a first batch say, where they are known."""
    return OTHER_DATA if None not in (then, now) and then != now else None
