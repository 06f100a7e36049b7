"""Shell completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prototrain.commands.completion import models, settings
from tests.conftest import ROOT


def test_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("zoo/cat.py", "zoo/__init__.py", "zoo/big/__init__.py", "single.py", "no-module.py", ".git/config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert models("") == ["single", "zoo"]
    assert models("zoo.c") == ["zoo.big", "zoo.cat"] and models("nothing.") == []


def test_settings() -> None:
    assert "model.batch_size=" in settings("mo")
    assert {"model.optimizer.method=adam", "model.optimizer.method=lion"} <= set(settings("model.optimizer.method=a"))
    assert list(settings("model.jit_compile=")) == ["model.jit_compile=true", "model.jit_compile=false"]
    assert list(settings("mine=")) == []


def test_completion_does_not_import_tensorflow(tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    line = "prototrain run models.simple --trainer multi"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "out"), "_ARGCOMPLETE_IFS": "\n"}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9", "PYTHONPATH": str(ROOT)}
    program = "import sys; sys.modules['tensorflow'] = None; from prototrain.cli import main; main(['--version'])"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **asked}, check=False, cwd=ROOT)
    assert (tmp_path / "out").read_text().split() == ["multi_worker"]
