from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib import pyplot

from prototrain.config.schema import SCHEMA
from tests.conftest import ROOT


def test_site_shows_the_schema() -> None:
    hooks = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    config = SimpleNamespace(repo_url=None, config_file_path=str(ROOT / "mkdocs.yml"))
    page = hooks["on_page_markdown"]((ROOT / "docs" / "configuration.md").read_text(encoding="utf-8"), config=config)
    page = page.replace("<wbr>", "")
    rows = dict(re.findall(r"^\| <code>([\w.]+)</code> \| (.*) \|$", page, re.MULTILINE))
    assert list(rows) == list(SCHEMA)
    assert rows["model.batch_size"] == "int >= 1 | required | examples per step, over all towers"
    assert rows["model.optimizer.lion.beta_1"].startswith("float | `0.9` | ")
    assert "config keys:" not in page


def test_quickstart_runs(scratch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pyplot, "show", lambda: None)
    cells = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": "quickstart"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert names["trainer"].monitors.latest("vld/accuracy") > 0.95
    assert "outer ring? [False  True]" in capsys.readouterr().out
