from __future__ import annotations

import io
import sys

import pytest
import tensorflow as tf
from rich.console import Console

from prototrain.system.terminal import Table, one_line, plain_table, print_tables, printable, say
from prototrain.system.tracebacks import cause, format_error, python_in_graph
from tests.tiny import tiny_trainer


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
    ["experiment", "state", "steps", "[/more]"],
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


@pytest.mark.parametrize("width", [80, 40])
def test_no_column_of_numbers_is_lost(width: int) -> None:
    headers = ["trial", "state", "model.optimizer.beta", "model.lr_schedule.value", "vld/loss", "step"]
    row = ["7", "finished", "0.123456789", "0.000123456", "0.98765", "12345"]
    lines = drawn(Table([row], headers), width)
    assert max(map(len, lines)) <= width
    said = "".join("".join(lines).split())
    assert sorted(said.replace("-", "")) == sorted("".join([*headers, *row]))
    assert width < 80 or all(cell in "".join(lines) for cell in row)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colors_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for stream, has_colors in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stdout", stream)
        print_tables("\x1b[2J before", WIDE, end="\n\n")
        said = stream.getvalue()
        assert said.startswith(r"\x1b[2J before") and said.endswith("x\n\n" if not has_colors else "\n\n")
        assert ("\x1b[31mfailed" in said) == has_colors
        assert has_colors or str(WIDE) in said
        assert max(map(len, plain_table({"name": "word " * 40}).splitlines())) == 80


def failing_datasets() -> dict[str, tf.data.Dataset]:
    raise RuntimeError("mine")


def test_only_user_frames_are_shown() -> None:
    with pytest.raises(RuntimeError) as caught:
        tiny_trainer(datasets=failing_datasets)
    outer = ValueError("outer")
    outer.__cause__ = caught.value
    text, with_cause = format_error(caught.value), format_error(outer)
    assert text.endswith("RuntimeError: mine\n") and "in failing_datasets" in text
    assert "prototrain" not in text.replace("/prototrain/tests", "")
    assert "direct cause" in with_cause and "datasets.py" not in with_cause


def test_python_code_in_a_graph_shows_its_frames() -> None:
    def generate() -> object:
        yield 1.0
        raise ValueError("bad row")

    dataset = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.float32))
    with pytest.raises(tf.errors.OpError) as caught:
        list(dataset)
    text = python_in_graph(caught.value)
    assert cause(caught.value) == "ValueError: bad row"
    assert text is not None
    assert [line.split(", in ")[1] for line in text.splitlines() if " File " in line] == ["generate"]
    assert text.endswith("ValueError: bad row\n")


def test_error_of_an_op() -> None:
    with pytest.raises(tf.errors.OpError) as caught:
        next(iter(tf.data.TextLineDataset("no/such/file")))
    assert python_in_graph(caught.value) is None
    assert cause(caught.value) == "no/such/file; No such file or directory"
    assert python_in_graph(None) is None
