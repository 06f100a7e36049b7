"""docs/exporting.md: its commands run, one after the other, and print what the page shows."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from prototrain.cli import main
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "exporting.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(console|python)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def shape(text: str) -> list[str]:
    """Lines without scores, and without the widths of columns that depend on them."""
    return [re.sub(r" {2,}|-{2,}", "  ", re.sub(r"\d\.\d+", "0", line)) for line in text.strip().splitlines()]


@pytest.mark.slow
def test_the_commands_print_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    for kind, block in BLOCKS:
        if kind == "python" and (file := re.match(r"# (\S+\.py)\n", block)):
            Path(file[1]).parent.mkdir()
            Path(file[1]).write_text(block)
        elif kind == "python":
            exec(compile(block, "docs/exporting.md", "exec"), {})
        for command, shown in re.findall(
            r"^\$ (.*)\n((?:[^$].*\n|\n)*)", block if kind == "console" else "", re.MULTILINE
        ):
            for name in [name for name in sys.modules if name.partition(".")[0] in ("models", "my_actions")]:
                monkeypatch.delitem(sys.modules, name)  # each command finds the model's own config
            program, *arguments = shlex.split(command)
            assert program == "prototrain" and main(arguments) == 0
            said = capsys.readouterr().out
            assert not shown or shape(said) == shape(shown), command
    assert said.startswith("[[") and Path("experiments/simple/analysis/step-0000000100-evaluate.json").exists()
