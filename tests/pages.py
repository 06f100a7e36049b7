"""Runs the examples of a documentation page, from top to bottom."""

from __future__ import annotations

import ast
import gc
import json
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from prototrain import launch
from prototrain.cli import _parser, main
from tests.conftest import forget_models
from tests.tiny import PressesCtrlC

_FENCE = re.compile(r"^```(\w*)(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_NOT_RUN = {"cd", "mkdir", "pip", "pre-commit", "pytest", "tensorboard"}


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language, info: what stands behind the fence: `python title="..."`.
        code: what is in it.
        line: where it begins, from 0.
    """

    language: str
    info: str
    code: str
    line: int


def read_blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [Block(*found.groups(), text.count("\n", 0, found.start(3))) for found in _FENCE.finditer(text)]


def follow(
    page: Path,
    blocks: list[Block],
    names: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run the blocks of a page in the working directory.

    Python runs in the namespace `names`, and becomes a file too if its first line names one. Commands must print what
    is shown, and Python what stands in the block behind it with the title "prints". Old code (`title="before..."`),
    data and shell scripts are only parsed.
    """
    said = ""
    for block in blocks:
        code = "\n" * block.line + block.code
        if block.language == "python" and "before" in block.info:
            ast.parse(code, str(page))
        elif block.language == "python":
            if file := re.match(r"# (\S+\.py)\n", block.code):
                Path(file[1]).parent.mkdir(exist_ok=True)
                Path(file[1]).write_text(block.code, encoding="utf-8")
            capsys.readouterr()
            exec(compile(code, str(page), "exec"), names)
            said = capsys.readouterr().out
            gc.freeze()  # as after each test
        elif "prints" in block.info:
            assert shape(block.code) == shape(said), f"{page.name}, line {block.line}, prints\n{said}"
        elif block.language == "console":
            for command, shown in _COMMAND.findall(block.code):
                with monkeypatch.context() as patch:
                    said = run(command, shown.splitlines(), patch, capsys)
                missing = not_said(shape(shown), shape(said))
                assert not missing, f"{page.name}: {command} prints\n{said}"
        elif block.language == "json":
            json.loads(block.code)
        elif block.language == "yaml":
            yaml.safe_load(block.code)
        elif block.language == "bash":
            subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)
            for line in re.findall(r"^(?:srun )?prototrain (.*)", block.code.replace("\\\n", ""), re.MULTILINE):
                _parser().parse_args(shlex.split(line, comments=True))
        else:
            assert block.language in ("", "text"), f"{page.name}: {block}"


def run(command: str, shown: list[str], patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command in this process; if `^C` is shown, press Ctrl-C after the step that the page shows as saved.

    Returns:
        what it has printed, or what was shown where it is one that tests do not run.
    """
    program, *arguments = shlex.split(command)
    if program in _NOT_RUN or "postgresql:" in command:
        return "\n".join(shown)
    assert program == "prototrain", command
    stopped = "^C" in shown
    if stopped:
        (step,) = (int(found[1]) for line in shown if (found := re.match(r"saved step (\d+)", line)))
        usual = launch.default_callbacks
        patch.setattr(launch, "default_callbacks", lambda model: [*usual(model), PressesCtrlC(step)])
    forget_models()
    capsys.readouterr()
    code = main(arguments)
    said = capsys.readouterr()
    assert code == (130 if stopped else 0), f"{command} ended with {code}\n{said.out}{said.err}"
    return said.out + "^C\n" * stopped


def split_sections(page: Path) -> list[list[Block]]:
    """The blocks of a page, divided by the headings `##`."""
    lines = page.read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("## ")]
    sections: list[list[Block]] = [[] for _ in range(len(starts) + 1)]
    for block in read_blocks(page):
        sections[sum(start < block.line for start in starts)].append(block)
    return sections


def shape(text: str) -> list[str]:
    """Lines without what differs from machine to machine: measured numbers, times, and the widths of columns; and what
    a slow machine says while it is waited for ("building the model ...").

    Whole numbers stay, except in a cell with others that are not whole, and a 0 or 1 that may be a score.
    """
    lines = [line.rstrip() for line in text.strip().splitlines() if not line.endswith(" ...")]
    lines = [re.sub(r"\d+(:\d\d)+ +[\d.,]+(?= )", "0:00  0", line) for line in lines]  # the time and the steps/s
    return ["  ".join(map(_shape_of_cell, re.split(r" {2,}|-{2,}", line))) for line in lines]


def _shape_of_cell(cell: str) -> str:
    cell = re.sub(r"\d+ (min( \d+ s)?|s)\b", "0 s", cell)
    measured = re.search(r"\d\.\d|\de[+-]\d", cell) or cell in ("0", "1")
    return re.sub(r"\d[\d.,e+-]*", "0", cell) if measured else cell


def not_said(shown: list[str], said: list[str]) -> list[str]:
    """The lines that are shown and were not printed. With `...` among them, others may stand in between."""
    if not shown or shown == said:
        return []
    rest = iter(said)
    return [line for line in shown if line not in ("...", "^C") and line not in rest] if "..." in shown else shown
