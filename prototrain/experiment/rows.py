"""The rows of metrics.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def read_rows(content: bytes) -> Iterator[dict[str, Any]]:
    """The rows in the content of a metrics.jsonl, each with its "step"; lines that are no rows, or half of one, are
    left out."""
    for line in content.splitlines(keepends=True):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if line.endswith(b"\n") and isinstance(row, dict) and isinstance(row.get("step"), int):
            yield row
