from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from prototrain.callbacks import JSONWriter, Summaries, Validation
from prototrain.cli import main
from tests.conftest import ROOT
from tests.made import ENVIRONMENT, ROWS, make, part, running
from tests.tiny import tiny_trainer


class Page(HTMLParser):
    """Collect the tags and texts of a page; every tag must be closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text(encoding="utf-8")
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(self.text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag != "meta":
            self.open.append(tag)
        assert not {"href", "src", "onclick", "onload"} & dict(attrs).keys()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif data.strip() and self.open[-1] != "style":
            self.words.append(data.strip())

    def after(self, word: str, count: int = 1) -> list[str]:
        index = self.words.index(word)
        return self.words[index + 1 : index + 1 + count]

    @property
    def charts(self) -> dict[str, list[dict[str, Any]]]:
        """The lines of each chart, by its title."""
        return {chart["title"]: chart["lines"] for chart in json.loads(self.scripts[0])["charts"]}


def report(experiment: Path) -> Page:
    assert main(["report", str(experiment)]) == 0
    return Page(experiment / "report.html")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with validation and curves."""
    directory = tmp_path_factory.mktemp("report") / "trained"
    callbacks = [Validation().every(steps=10), Summaries().every(steps=10), JSONWriter()]
    tiny_trainer(directory).train(callbacks, max_steps=20)
    return directory


@pytest.fixture(scope="module")
def page(trained: Path) -> Page:
    return report(trained)


def test_page_of_a_run(page: Page) -> None:
    headings = ["Curves", "Scalars", "Config", "Time", "Environment"]
    assert [word for word in page.words if word in headings] == headings
    assert page.words[1:7] == ["trained", "state", "finished", "steps", "20 of 20", "best"]
    assert re.fullmatch(r"vld/loss [\d.]+ at step (10|20)", page.after("best")[0]) and page.after("command")
    assert page.after("versions.tensorflow") == [tf.__version__]
    assert page.after("model.batch_size") == ["8"]
    assert {line["label"] for line in page.charts["loss"]} == {"trn/loss", "vld/loss"}
    assert all(line["x"] == [10, 20] and all(line["y"]) for line in page.charts["loss"])
    assert not {"use_ema", "sources", "stages"} & set(re.split(r"\W+", page.text.partition("Environment</h2>")[2]))


def test_page_is_self_contained(page: Page) -> None:
    assert page.tags & {"link", "iframe", "object", "a"} == set()
    _, drawing = page.scripts
    digest = base64.b64encode(hashlib.sha256(drawing.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page.text
    assert re.search(r"url\(|@import|https?://", page.text.replace(drawing, "")) is None
    assert re.search("fetch\\(|XMLHttpRequest|WebSocket|import\\(", drawing) is None


def test_script_reads_only_keys_of_the_data(page: Page) -> None:
    read = set(re.findall(r"\bline\.(\w+)", (ROOT / "prototrain/runs/page/draw.js").read_text()))
    assert read and all(read <= line.keys() for lines in page.charts.values() for line in lines)


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the script of the page")
def test_script_draws_every_chart(page: Page) -> None:
    program = Path(__file__).parent / "drawn.js"
    done = subprocess.run(["node", program], input=json.dumps(page.scripts), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {title: len(lines) + 1 for title, lines in page.charts.items()}


def test_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = {**ENVIRONMENT, "command": ["/bin/prototrain", "run", "m", "-s", "model.width=4"]}
    make(tmp_path / "a", part(changes=[["model.width", 4, 8]]), config={"model.width": 4}, environment=command)
    make(tmp_path / "b", config={"model.width": 8}, rows=[{**ROWS[1], "vld/loss": 0.3}, {**ROWS[2], "vld/loss": 0.2}])
    monkeypatch.chdir(tmp_path)
    assert main(["report", "a", "b", "--smooth", "0.5"]) == 0
    page = Page(Path("report.html"))
    assert page.words[1] == "a, b"
    assert page.after("best", 2) == ["vld/loss 0.4 at step 100", "vld/loss 0.2 at step 150"]
    assert page.after("command") == ["prototrain run m -s model.width=4"] and page.after("changed") == ["model.width=4"]
    assert page.after("model.width", 2) == ["4", "8"]
    labels = [(line["label"], line["color"], line["pale"]) for line in page.charts["loss"] if "vld" in line["label"]]
    assert labels == [(f"{name} vld/loss{raw}", n, bool(raw)) for n, name in enumerate("ab") for raw in (", raw", "")]


def test_text_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('&')</script>"
    make(
        tmp_path / "<b>&$title",
        part(state="failed", reason=evil, callbacks={evil: 1.0}, start=evil, changes=[["model.key", evil, evil]]),
        rows=[{"step": step, evil: step, "a/$": step} for step in (1, 2)],
        config={"model.key": evil, "model.fn": "def f(x):\n    return x\n"},
        environment={**ENVIRONMENT, evil: evil},
    )
    (tmp_path / "<b>&$title" / "train.log").write_text(
        f"{evil}\n" * 150 + "\udcff".encode("utf-8", "surrogateescape").decode("latin-1")
    )
    page = report(tmp_path / "<b>&$title")
    assert "b" not in page.tags and len(page.scripts) == 2 and evil in page.charts
    assert page.words[1] == "<b>&$title"
    assert page.after("model.key", 2) == [evil, evil]
    assert page.words.count(evil) >= 4
    assert "The last 100 of 151 lines" in page.words


def test_empty_run(tmp_path: Path) -> None:
    make(tmp_path / "new", running(), rows=[])
    (tmp_path / "new" / "config.json").unlink()
    page = report(tmp_path / "new")
    assert page.scripts == []
    assert [word for word in page.words if word in ("Curves", "Scalars", "Images", "Config", "Time")] == ["Time"]
    (tmp_path / "new" / "run.json").unlink()
    assert "Time" not in report(tmp_path / "new").words


def test_resumed_run(tmp_path: Path) -> None:
    killed = running(started=2000.0, first_step=150, start="resumed at step 150; data: ")
    again = part(started=3000.0, first_step=150, step=200, seconds=10.0)
    page = report(make(tmp_path / "a", part(state="interrupted", reason="SIGINT"), killed, again))
    assert page.after("fresh", 4) == ["0 to 150", "40 s", "3.75", "interrupted: SIGINT"]
    assert page.after("150 to 200", 3) == ["10 s", "5", "finished"]
