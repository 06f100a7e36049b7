"""What has changed of the training data since a place in it was saved, by the fingerprints of then and now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from prototrain.data.pipeline import first_difference

OTHER_DATA = (
    "the training data did not repeat: its first batch is another one (have its files changed, or does its code draw "
    "random numbers?)"
)
OTHER_SIZES = "files of the training data have other sizes than they had"
_STAGES, _FILES = ("pipeline", "pipeline anywhere"), ("directories", "sizes")


class Changes(NamedTuple):
    """In words, each.

    Attributes:
        refused: with these the place cannot be meant any more.
        weakened: with these it is only not come back to.
    """

    refused: list[str]
    weakened: list[str]


def changes_of(then: Mapping[str, Any], now: Mapping[str, Any], *, is_kept: bool, names_files: bool) -> Changes:
    """Compare two fingerprints; see `TrainingData.fingerprint`.

    Args:
        then: as it was saved with a place.
        now: of the data that is there.
        is_kept: whether a resume comes back to the place.
        names_files: whether a saved place may have the names of the data's files in it.
    """
    values = {key: value for key, value in now.items() if key not in (*_STAGES, *_FILES)}
    found = {
        key: f"{key} was {then.get(key)} and is {value}" for key, value in values.items() if value != then.get(key)
    }
    known = "pipeline anywhere" if "pipeline anywhere" in then else "pipeline"  # versions before did not look for files
    lay, lie = (one.get("directories", []) for one in (then, now))
    if (difference := first_difference(then[known], now[known])) is not None:
        found["pipeline"] = difference
    elif known == "pipeline anywhere" and lay != lie and names_files:
        there, here = (", ".join(path or "." for path in paths) for paths in (lay, lie))
        found["files"] = f"its files lie in {here} and not in {there}, and the saved place has their names"
    # Where a resume starts a new pass in any case, all but another form of the batches is harmless.
    refused = [key for key in found if key == "elements" or (key not in ("mode", "files") and is_kept)]
    return Changes([found[key] for key in refused], [words for key, words in found.items() if key not in refused])


def other_content(
    then: Mapping[str, Any], now: Mapping[str, Any], first_then: str | None, first_now: str | None
) -> str | None:
    """What shows that the data has other content where it is described in the same way: a record was repaired, perhaps.

    Args:
        then: the fingerprint that was saved.
        now: that of the data that is there.
        first_then: the digest of the first batch of then, if it was looked at.
        first_now: that of now.
    """
    if None not in (first_then, first_now) and first_then != first_now:
        return OTHER_DATA
    return OTHER_SIZES if then.get("sizes", now["sizes"]) != now["sizes"] else None
