"""The documentation's examples run, and the documentation names every callback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from prototrain import callbacks
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "callbacks.md").read_text(encoding="utf-8")
BLOCKS = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = re.split(r"^(?=## )", PAGE, flags=re.MULTILINE)


def sections() -> Iterator[Any]:
    """The sections with examples that stand on the first ones."""
    for section in SECTIONS:
        title = section.splitlines()[0].removeprefix("## ")
        if BLOCKS.search(section) and title not in ("Write one in ten lines", "The examples"):
            yield pytest.param(section, id=title)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the page's first blocks define."""
    defined: dict[str, Any] = {"__name__": "page"}
    first = [section for section in SECTIONS if section.startswith(("## Write one", "## The examples"))]
    for block in BLOCKS.findall("".join(first)):
        run_block(block, defined)
    return defined


def run_block(code: str, names: dict[str, Any]) -> None:
    line = PAGE[: PAGE.index(code)].count("\n")
    exec(compile("\n" * line + code, "docs/callbacks.md", "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("section", list(sections()))
def test_the_examples_run(section: str, names: dict[str, Any]) -> None:
    own = dict(names)
    for block in BLOCKS.findall(section):
        run_block(block, own)


def test_every_callback_has_its_place() -> None:
    classes = [getattr(callbacks, name) for name in callbacks.__all__]
    mine = [c.__name__ for c in classes if isinstance(c, type) and issubclass(c, callbacks.Callback)]
    headings = set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE))
    assert set(mine) - {"Callback"} - headings == set()
    missing = [name for name in callbacks.__all__ if f"`{name}" not in PAGE and f"{name}(" not in PAGE]
    assert missing == ["Best", "Priority"]


def test_each_example_is_short() -> None:
    for heading, section in re.findall(r"^### (\w+)\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL):
        blocks = BLOCKS.findall(section)
        assert blocks, heading
        lines = [line for line in blocks[0].splitlines() if line.strip()]
        classes = sum(line.startswith(("class", "def", "    ")) for line in lines)
        assert len(lines) - classes <= 4, heading
