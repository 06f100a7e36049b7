"""Tables for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from tabulate import tabulate

WIDTH = 120


def plain_table(rows: Mapping[str, Any], *, width: int | None = WIDTH) -> str:
    """Names and values as a table without lines.

    Args:
        rows: values by name.
        width: long values are folded where spaces allow, so that lines keep to this many characters; None for never.
    """
    texts = {name: str(value) for name, value in rows.items()}
    if width is not None:
        room = width - max(map(len, texts)) - 2
        texts = {name: _folded(text, room) for name, text in texts.items()}
    return tabulate(texts.items(), tablefmt="plain", disable_numparse=True)


def _folded(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_on_hyphens=False, break_long_words=False)
