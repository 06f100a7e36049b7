"""Text from others on a terminal."""

from __future__ import annotations

import pytest

from prototrain.system.terminal import Table, one_line, plain_table, printable, say


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
def test_nothing_but_text_is_left(text: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printable(text) == expected
    assert one_line(text) == expected.replace("\n", r"\n").replace("\t", r"\t")
    say(text)
    say(text, end="", to_stderr=True)
    assert tuple(capsys.readouterr()) == (f"{expected}\n", expected)


def test_tables_keep_their_lines() -> None:
    shown = str(Table([["a\nb", 1], ["\x1b[31m", 2]], ["na\rme", "n"]))
    assert shown.splitlines()[0].split() == [r"na\rme", "n"]
    assert [line.split() for line in shown.splitlines()[2:]] == [[r"a\nb", "1"], [r"\x1b[31m", "2"]]
    assert plain_table({"a\nb": "\x1b[31m"}) == r"a\nb  \x1b[31m"
