"""Formats numbers, times and names for people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

FRESH = "--fresh (in Python: train(fresh=True))"
"""How to start again, for messages to the user."""
ALLOW_CHANGED_DATA = "--allow-changed-data (in Python: train(allow_changed_data=True))"
"""How to continue with other data, for messages to the user."""


def in_words(seconds: float) -> str:
    """Format a time in its two largest units.

    >>> in_words(3700), in_words(59.6), in_words(180000)
    ('1 h 2 min', '1 min', '2 d 2 h')
    """
    rest = round(seconds)
    if rest >= 3600:
        rest = round(rest / 60) * 60
    words = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, rest = divmod(rest, length)
        if amount:
            words.append(f"{amount} {unit}")
    return " ".join(words[:2]) or "0 s"


def in_bytes(size: int) -> str:
    """Format a number of bytes in its largest unit.

    >>> in_bytes(71208), in_bytes(1_656_204)
    ('71 kB', '1.7 MB')
    """
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= length:
            return f"{size / length:.1f} {unit}" if size < 10 * length else f"{size / length:,.0f} {unit}"
    return f"{size} bytes"


def in_clock(seconds: float) -> str:
    """Format a time like a clock.

    >>> in_clock(75.4), in_clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def in_digits(value: float) -> str:
    """Format a number with four significant digits, or a whole number with all of its digits.

    >>> in_digits(0.0123456), in_digits(20000.0), in_digits(float("nan"))
    ('0.01235', '20000', 'nan')
    """
    return str(int(value)) if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"


def shortened(name: str, width: int) -> str:
    """Shorten a name to `width` characters with an ellipsis in the middle.

    >>> shortened("encoder/block_1/attention", 15)
    'encoder…tention'
    """
    half = width // 2
    return name if len(name) <= width else f"{name[:half]}\u2026{name[half + 1 - width :]}"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """List the first few names and the number of further names.

    >>> some_of(["a", "b"]), some_of(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that match one of the patterns, which may contain the wildcards * and ?.

    >>> matching(["trn/loss", "vld/loss", "vld/accuracy"], ["vld/*", "trn/loss"])
    ['vld/loss', 'vld/accuracy', 'trn/loss']
    """
    known = list(names)
    found = [name for pattern in patterns for name in known if name == pattern or fnmatchcase(name, pattern)]
    return list(dict.fromkeys(found))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion for the end of an error message about an unknown word; empty if no known word is similar.

    >>> did_you_mean("Adm", ["adam", "sgd"]), did_you_mean("x", ["adam"])
    ("; did you mean 'adam'?", '')
    """
    near = difflib.get_close_matches(word.lower(), known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
