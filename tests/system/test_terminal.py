from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from prototrain.system.terminal import Table, one_line, plain_table, printable, say, show


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("h\u00e9llo \u4e16\u754c \U0001f600", "h\u00e9llo \u4e16\u754c \U0001f600"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\x9b2Jb", r"a\x9b2Jb"),
        ("over\rwritten", r"over\rwritten"),
        ("bell\x07\x00", r"bell\x07\x00"),
        ("\u202eback", r"\u202eback"),
        ("half \udc80", r"half \udc80"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
    ],
)
def test_control_characters_are_escaped(text: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printable(text) == expected
    assert one_line(text) == expected.replace("\n", r"\n").replace("\t", r"\t")
    say(text)
    say(text, end="", to_stderr=True)
    assert tuple(capsys.readouterr()) == (f"{expected}\n", expected)


WIDE = Table(
    [["a-long-name-of-a-run", "failed: no room\x1b[31m", 12, None], ["b", "finished", 1, "x"]],
    ["experiment", "state", "steps", "more"],
    {"failed": "red"},
)


def drawn(table: Table, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(table.fitted(width))
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [200, 60, 45])
def test_tables_fit_the_width(width: int) -> None:
    lines = drawn(WIDE, width)
    assert max(map(len, lines)) <= width
    said = "".join("".join(lines).split())
    for word in ("failed:", "no", "room", "finished", "12", "experiment"):
        assert word in said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for stream, has_colours in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stdout", stream)
        show("\x1b[2J before", WIDE, end="\n\n")
        said = stream.getvalue()
        assert said.startswith(r"\x1b[2J before") and said.endswith("x\n\n" if not has_colours else "\n\n")
        assert ("\x1b[31mfailed" in said) == has_colours
        assert has_colours or str(WIDE) in said
        assert max(map(len, plain_table({"name": "word " * 40}).splitlines())) == 80
