from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from prototrain.cli import main
from prototrain.runs import read_run
from prototrain.runs.curves import Curve, Look, charts
from tests.made import ROWS, make
from tests.tiny import fails


@pytest.fixture(autouse=True)
def _experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two experiments with scalars, and one without, in the working directory."""
    monkeypatch.chdir(tmp_path)
    make(Path("a"))
    make(Path("_b$x$"), rows=[{**ROWS[1], "vld/rate": 0.5, "single": 3}, {**ROWS[2], "vld/loss": None}])
    make(Path("none"), rows=[])


def plot(*arguments: str) -> int:
    return main(["plot", *arguments])


def texts(svg: bytes | str) -> list[str]:
    """Return the texts in a picture, without numbers; glyphs are drawn, and their text is in a comment."""
    text = svg.decode() if isinstance(svg, bytes) else svg
    return [found for found in re.findall(r"<!-- (.*?) -->", text) if not re.fullmatch(r"[\d.]+", found)]


@pytest.mark.parametrize(("name", "start"), [("c.png", b"\x89PNG"), ("c.SVG", b"<?xml")])
def test_formats(name: str, start: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    assert plot("a", "--scalar", "vld/loss", "-o", name) == 0
    assert Path(name).read_bytes().startswith(start)
    assert capsys.readouterr().out == f"{name}\n"


def test_scalars_of_several_runs_share_charts() -> None:
    scalars = ["--scalar", "vld/loss", "--scalar", "vld/rate", "--scalar", "trn/loss", "--scalar", "vld/loss"]
    assert plot("_b$x$", *scalars, "-o", "c.svg") == 0
    shown = texts(Path("c.svg").read_text())
    assert shown == ["step", "loss", " vld/loss", " trn/loss", "step", "vld/rate", " vld/rate"]
    assert plot("_b$x$", "a", "--scalar", "vld/loss", "--scalar", "trn/loss", "-o", "c.svg") == 0
    shown = texts(Path("c.svg").read_text())
    assert shown == ["step", "loss", " _b$x$ vld/loss", " _b$x$ trn/loss", " a vld/loss", " a trn/loss"]
    ElementTree.parse("c.svg")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--scalar", "loss"], "a has no scalar 'loss'; it has: trn/loss, vld/loss"),
        (["a", "--scalar", "vld/loss", "-o", "nowhere/c.png"], "cannot write nowhere/c.png: No such file or directory"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = fails(capsys, "plot", *arguments, *([] if "-o" in arguments else ["-o", "c.png"]))
    assert said.startswith(f"prototrain: error: {message}")
    assert not Path("c.png").exists()


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = fails(capsys, "plot", "a", "--scalar", "vld/loss", "-o", "c.png")
    assert said.endswith("curves are drawn with matplotlib; pip install 'prototrain[plot]'\n")
    assert main(["report", "none"]) == 0  # no curves


def test_patterns_log_axis_and_smoothing() -> None:
    make(Path("low"), rows=[{**ROWS[1], "vld/loss": 0.0, "vld/rate": 1.0}, {**ROWS[2], "vld/rate": 100.0}])
    options = ["--log", "--smooth", "0.5"]
    assert plot("low", "a", "--scalar", "vld/*", *options, "-o", "c.svg") == 0
    svg = Path("c.svg").read_text()
    assert [text for text in texts(svg) if "$" not in text] == [
        *["step", "vld/loss (1 not above 0 left out)", " low vld/loss", " a vld/loss"],
        *["step", "vld/rate", " low vld/rate"],
    ]
    assert svg.count("stroke-opacity: 0.25") == 3


def test_smoothing() -> None:
    make(Path("smooth"), rows=[{"step": step, "x": value} for step, value in ((1, 4.0), (2, 0.0), (3, 8.0))])
    assert charts([read_run("smooth")], ["x", "not there"], Look(smooth=0.5))["x"] == [
        Curve("x, raw", 0, 0, True, [1, 2, 3], [4.0, 0.0, 8.0]),
        Curve("x", 0, 0, False, [1, 2, 3], pytest.approx([4, 4 / 3, 36 / 7])),
    ]
