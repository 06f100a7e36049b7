"""The documentation is correct: its examples run, and it names every callback and exported name."""

from __future__ import annotations

import re
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import prototrain
from prototrain import callbacks
from prototrain.experiment.record import Attempt
from prototrain.sweeps import processes
from prototrain.sweeps.study import Trial
from tests.conftest import ROOT
from tests.pages import follow, read_blocks, split_sections

DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if read_blocks(page) and page != DOCS / "index.md")
CALLBACKS = DOCS / "reference" / "callbacks.md"
LEFT = {  # files that a page must create
    "experiments.md": ["curves.png", "experiments/wide/report.html"],
    "sweeps.md": ["shared.journal", "experiments/from-python-1"],
    "exporting.md": ["experiments/simple/analysis/step-0000000100-evaluate.json", "experiments/simple/exported/200"],
}


def finish(trial: Trial, arguments: list[str], *_: Any) -> tuple[int, str]:
    """A trial of a sweep without its process, which is best with Adam and a large batch."""
    losses = {"model.batch_size=16": 0.18142, "model.batch_size=32": 0.14851, "model.optimizer.method=sgd": 1.53}
    trial.report({"vld/loss": (100, sum(losses.get(argument, 0.0) for argument in arguments))})
    return 0, ""


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_examples_of_a_page_run(
    page: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "run_process", finish)
    if page.name == "boosted-trees.md":
        pytest.importorskip("xgboost")
    names: dict[str, Any] = {"__name__": "page"}
    first, *others = [[*chain(*split_sections(page))]]
    if page == CALLBACKS:  # its sections depend on the first ones only
        before, examples, *others = split_sections(page)
        first = [*before, *examples]
    follow(page, first, names, monkeypatch, capsys)
    for section in others:
        follow(page, section, dict(names), monkeypatch, capsys)
    assert [path for path in LEFT.get(page.name, []) if not (scratch / path).exists()] == []


def test_index_shows_part_of_the_readme_program() -> None:
    (block,) = read_blocks(DOCS / "index.md")
    whole = next(block.code for block in read_blocks(ROOT / "README.md") if block.language == "python")
    assert set(block.code.splitlines()) <= set(whole.splitlines())


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *DOCS.rglob("*.md")], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_are_valid(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_every_callback_is_documented() -> None:
    text = CALLBACKS.read_text(encoding="utf-8")
    classes = [getattr(callbacks, name) for name in callbacks.__all__]
    mine = [c.__name__ for c in classes if isinstance(c, type) and issubclass(c, callbacks.Callback)]
    headings = set(re.findall(r"^### (\w+)$", text, re.MULTILINE))
    assert set(mine) - {"Callback"} - headings == set()
    missing = [name for name in callbacks.__all__ if f"`{name}" not in text and f"{name}(" not in text]
    assert missing == ["Best", "Priority"]


def test_every_exported_name_is_in_the_api() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    shown = tuple(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    homes = [f"prototrain.{home}.{name}" for name, home in prototrain._HOMES.items()]
    assert [home for home in homes if not home.startswith(shown)] == []


def test_run_json_is_documented() -> None:
    table = (DOCS / "reference" / "run-json.md").read_text(encoding="utf-8")
    names = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `")))
    assert sorted(names) == sorted(attribute.name for attribute in fields(Attempt))


def test_inside_page_names_existing_files() -> None:
    page = (DOCS / "inside.md").read_text(encoding="utf-8")
    files = set(re.findall(r"[ `]((?:\w+/)+\w+\.py)", page))
    assert len(files) > 20
    assert [file for file in files if not any((base / file).is_file() for base in (ROOT, ROOT / "prototrain"))] == []
