"""Tables for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from prototrain.system.terminal import one_line, printable

WIDTH = 120


def table(rows: Iterable[Sequence[Any]], **options: Any) -> str:
    """Rows as tabulate shows them, without what in their texts, or the headers', would harm a terminal.

    Args:
        rows: of cells.
        options: for `tabulate`.
    """
    if "headers" in options:
        options["headers"] = [one_line(header) for header in options["headers"]]
    return tabulate([[one_line(cell) if isinstance(cell, str) else cell for cell in row] for row in rows], **options)


def plain_table(rows: Mapping[str, Any], *, width: int | None = WIDTH) -> str:
    """Names and values as a table without lines.

    Args:
        rows: values by name.
        width: long values are folded where spaces allow, so that lines keep to this many characters; None for never.
    """
    texts = {one_line(name): printable(str(value)) for name, value in rows.items()}
    if width is not None:
        room = width - max(map(len, texts)) - 2
        texts = {name: _folded(text, room) for name, text in texts.items()}
    return tabulate(texts.items(), tablefmt="plain", disable_numparse=True)


def _folded(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_on_hyphens=False, break_long_words=False)
