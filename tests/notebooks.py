"""Executes a notebook in a new kernel, and interrupts the cells whose metadata contain `interrupt`.

`python -m tests.notebooks docs/notebook.ipynb` renews what its cells have printed; do it where ipywidgets is not
installed, since a widget cannot be seen in a page.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

_THOUSANDS_DONE = re.compile(r"\b\d{4,}/\d")


class _Client(NotebookClient):  # type: ignore[misc]
    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """Interrupt the kernel, as Jupyter does, once the cell's progress bar shows some thousand steps."""
        shown = json.dumps(msg["content"], default=str, ensure_ascii=False)  # a stream, or an update of a widget
        if cell.metadata.get("interrupt") and cell.id not in self.interrupted and _THOUSANDS_DONE.search(shown):
            self.interrupted[cell.id] = asyncio.ensure_future(self.km.interrupt_kernel())
        return super().process_message(msg, cell, cell_index)


def execute(path: Path, directory: Path) -> Any:
    """Run all cells in a directory.

    Returns:
        the notebook with their outputs.
    """
    notebook = nbformat.read(path, as_version=4)
    client = _Client(
        notebook, timeout=120, coalesce_streams=True, record_timing=False, resources={"metadata": {"path": directory}}
    )
    client.interrupted = {}
    client.execute(env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"})
    return notebook


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        nbformat.write(execute(Path(sys.argv[1]), Path(scratch)), sys.argv[1])
