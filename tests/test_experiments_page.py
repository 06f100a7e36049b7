"""docs/experiments.md: its commands run, one after the other, and print what the page shows."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from prototrain.cli import main
from prototrain.run_record import Part
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(console|python)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def shape(text: str) -> list[str]:
    """Lines without numbers, and without the widths of columns that depend on them."""
    text = re.sub(r"\d+ min( \d+ s)?", "0 s", text)
    lines = [re.sub(r"\d[\d.e+-]*", "0", line) for line in text.splitlines()]
    return [re.sub(r" {2,}|-{2,}", "  ", line).rstrip() for line in lines]


def test_the_commands_print_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    for kind, block in BLOCKS:
        if kind == "python":
            exec(compile(block, "docs/experiments.md", "exec"), {"__name__": "page"})
            assert "wide finished [256, 128] (300," in capsys.readouterr().out
            continue
        for command, shown in re.findall(r"^\$ (.*)\n((?:[^$\n].*\n|\n)*)", block, re.MULTILINE):
            program, *arguments = shlex.split(command)
            if program == "pip":
                continue
            for name in [name for name in sys.modules if name.partition(".")[0] == "models"]:
                monkeypatch.delitem(sys.modules, name)  # each command finds the model's own config
            assert program == "prototrain" and main(arguments) == 0
            said = capsys.readouterr().out
            assert not shown or shape(said) == shape(shown), command
    assert (tmp_path / "curves.png").exists()


def test_the_page_describes_run_json() -> None:
    table = PAGE[PAGE.index("## run.json") :]
    names = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `")))
    assert sorted(names) == sorted(attribute.name for attribute in fields(Part))
