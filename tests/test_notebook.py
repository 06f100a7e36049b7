"""docs/notebook.ipynb runs in a kernel, is interrupted and continues."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.notebooks import execute


def printed(cell: dict[str, Any]) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", []))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # inside Jupyter
def test_interrupt_and_continue(tmp_path: Path) -> None:
    cells = {cell.id: cell for cell in execute(ROOT / "docs" / "notebook.ipynb", tmp_path).cells}
    assert "SIGINT: stopping after this step and saving" in printed(cells["train"])
    assert "stopped by hand" in printed(cells["train"]) and "steps/s" in str(cells["train"].outputs)
    stopped = re.search(r"stopped after step (\d+)", printed(cells["between"]))
    assert stopped and f"continues from step {stopped[1]}" in printed(cells["continue"])
    assert "has not improved in 4 measurements" in printed(cells["continue"])
    assert any("image/png" in output.get("data", {}) for output in cells["curves"].outputs)
