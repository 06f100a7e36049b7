"""Text for people: safe output, tables, messages for long operations, and formats of numbers and names."""

from __future__ import annotations

import difflib
import gc
import io
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from threading import Timer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table as RichTable

# Control characters, including those that begin escape sequences; marks that change the direction of writing;
# characters that only some programs treat as line ends; lone surrogates, which cannot be encoded.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_LINE = re.compile(f"{_UNSAFE.pattern[:-1]}\t\n]")


def printable(text: str) -> str:
    r"""Escape the characters of a text that could control a terminal.

    >>> printable("a\x1b[2Jb"), printable("two\nlines")
    ('a\\x1b[2Jb', 'two\nlines')
    """
    return text if text.isprintable() else _UNSAFE.sub(_escaped, text)


def one_line(text: str) -> str:
    r"""Escape the same characters as `printable`, and tabs and newlines; for names.

    >>> one_line("two\nlines")
    'two\\nlines'
    """
    return text if text.isprintable() else _UNSAFE_IN_LINE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def say(*values: Any, end: str = "\n", to_stderr: bool = False) -> None:
    """Print values as `print` does, with unsafe characters escaped."""
    print(printable(" ".join(map(str, values))), end=end, file=sys.stderr if to_stderr else sys.stdout, flush=True)


def is_interactive() -> bool:
    """Return whether this process is an interactive interpreter or the kernel of a notebook."""
    return hasattr(sys, "ps1") or in_notebook()


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook. Importing IPython does not count."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


WIDTH = 80  # the width of tables in characters, if the output is not a terminal
_UNLIMITED = 10_000
_SHORT = 10  # width of a cell that is cut, at least


@dataclass(frozen=True)
class Table:
    """A table with headers. Columns of numbers are aligned to the right."""

    rows: Sequence[Sequence[Any]]  # cells are strings, numbers or None
    headers: Sequence[str]
    colors: Mapping[str, str] = field(default_factory=dict)  # for cells that begin with a word, on a terminal
    cut: Collection[str] = ()  # headers of columns whose long cells end in an ellipsis; other cells are folded
    number_format: str = ""  # such as ","

    def __str__(self) -> str:
        return self.text(_UNLIMITED)

    def text(self, width: int) -> str:
        """Format the table as plain text with lines of `width` characters, or more if names would not be whole."""
        from rich.console import Console

        lines = io.StringIO()
        console = Console(file=lines, width=_UNLIMITED, highlight=False, no_color=True)
        console.print(self.fitted(width, folds_names=False))
        return "\n".join(line.rstrip() for line in lines.getvalue().splitlines())

    def fitted(self, width: int, *, folds_names: bool = True) -> RichTable:
        """Return a rich table for a width."""
        from rich.box import Box
        from rich.table import Table as RichTable
        from rich.text import Text

        box = Box("    \n    \n -  \n" + 5 * "    \n")  # a rule below the headers
        made = RichTable(box=box, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False, header_style="bold")
        rows = [[self._text(cell) for cell in row] for row in self.rows]
        widths = self._widths(rows, width, folds_names)
        for column, header in enumerate(self.headers):
            are_numbers = all(isinstance(row[column], int | float | None) for row in self.rows)
            is_cut = header in self.cut
            made.add_column(
                Text(one_line(header)),
                overflow="ellipsis" if is_cut else "fold",
                no_wrap=is_cut,
                width=widths[column],
                justify="right" if are_numbers else "left",
            )
        for row in rows:
            made.add_row(*(Text(text, style=self.colors.get(text.partition(":")[0], "")) for text in row))
        return made

    def _widths(self, rows: Sequence[Sequence[str]], width: int, folds_names: bool) -> list[int]:
        """Return the widths of the columns: first those in `cut` give room, then others fold at spaces, then all."""
        from rich.cells import cell_len

        columns = list(zip(self.headers, *rows, strict=True))
        found = [max(map(cell_len, cells)) for cells in columns]
        words = [max(cell_len(word) for cell in cells for word in (cell.split() or [cell])) for cells in columns]
        words[0] = found[0]  # a name is folded last
        cut = [column for column, header in enumerate(self.headers) if header in self.cut]
        first = [max(_SHORT, len(self.headers[column])) if column in cut else full for column, full in enumerate(found)]
        then = [first[column] if column in cut else word for column, word in enumerate(words)]
        last = [len(header) if column in cut else then[column] for column, header in enumerate(self.headers)]
        stages = [first, then, *([last, [1] * len(found)] if folds_names else [])]
        lacking = sum(found) + 2 * (len(found) - 1) - width
        for least in stages:
            while lacking > 0 and (wider := [column for column, low in enumerate(least) if found[column] > low]):
                found[max(wider, key=lambda column: (found[column], column))] -= 1
                lacking -= 1
        return found

    def _text(self, cell: Any) -> str:
        if isinstance(cell, bool) or not isinstance(cell, int | float):
            return "" if cell is None else one_line(str(cell))
        return format(cell, self.number_format)


def is_terminal(stream: Any) -> bool:
    """Return whether a standard stream is a terminal; it is None if the caller has closed it."""
    return stream is not None and bool(stream.isatty())


def print_tables(*parts: Table | str, end: str = "\n") -> None:
    """Print tables and text. Tables are folded to the width of the terminal, or else of COLUMNS, or to `WIDTH`."""
    for number, part in enumerate(parts):
        last = end if number == len(parts) - 1 else "\n"
        if isinstance(part, Table) and is_terminal(sys.stdout):
            from rich.console import Console

            terminal = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
            terminal.print(part.fitted(terminal.width))
            say("", end=last.removeprefix("\n"))
        else:
            say(part if isinstance(part, str) else part.text(shutil.get_terminal_size((WIDTH, 24)).columns), end=last)


def plain_table(rows: Mapping[str, Any], *, width: int | None = WIDTH) -> str:
    """Format names and values as a table without lines.

    Long values are folded at spaces to `width` characters, or to the width of the terminal if that is smaller.
    """
    texts = {one_line(name): printable(str(value)) for name, value in rows.items()}
    indent = max(map(len, texts), default=0) + 2
    if width is not None:
        if is_terminal(sys.stdout):
            width = min(width, shutil.get_terminal_size().columns)
        folded = textwrap.TextWrapper(max(width - indent, 20), break_on_hyphens=False, break_long_words=False)
        texts = {name: folded.fill(text) for name, text in texts.items()}
    lines = (f"{name:<{indent}}" + text.replace("\n", "\n" + " " * indent) for name, text in texts.items())
    return "\n".join(map(str.rstrip, lines))


PATIENCE_SECONDS = 2.0


@contextmanager
def announcing(what: str, announce: Callable[[str], object] = print) -> Iterator[None]:
    """Print a message, in another thread, if an operation (such as "building the model") takes `PATIENCE_SECONDS`."""
    timer = Timer(PATIENCE_SECONDS, announce, [f"{what} ..."])
    timer.daemon = True
    with suppress(RuntimeError):  # the system cannot start another thread
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_chosen_by_user = os.environ.get(_LEVEL, "3") != "3"  # a process that this one starts inherits the setting
os.environ.setdefault(_LEVEL, "3")


def import_tensorflow() -> None:
    """Import TensorFlow faster, and without its start-up messages unless ``TF_CPP_MIN_LOG_LEVEL`` is set."""
    if "tensorflow" in sys.modules:
        return
    # The import creates a million objects and hardly any garbage: looking for it takes a quarter of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with nullcontext() if _chosen_by_user else _stderr_held_back():
            import tensorflow  # noqa: F401
    finally:
        gc.freeze()  # later collections skip these objects
        if was_enabled:
            gc.enable()


@contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Drop what is written to stderr, also by C++ code that reads no log level, unless the block fails."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except Exception:
            said.seek(0)
            os.write(kept, said.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


# How to start again and how to continue with other data, for messages to the user.
FRESH = "--fresh (in Python: train(fresh=True))"
ALLOW_CHANGED_DATA = "--allow-changed-data (in Python: train(allow_changed_data=True))"


def format_duration(seconds: float) -> str:
    """Format a time in its two largest units.

    >>> format_duration(3700), format_duration(59.6), format_duration(180000)
    ('1 h 2 min', '1 min', '2 d 2 h')
    """
    rest = round(seconds)
    if rest >= 3600:
        rest = round(rest / 60) * 60
    words = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, rest = divmod(rest, length)
        if amount:
            words.append(f"{amount} {unit}")
    return " ".join(words[:2]) or "0 s"


def format_clock(seconds: float) -> str:
    """Format a time like a clock.

    >>> format_clock(75.4), format_clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_number(value: float) -> str:
    """Format a number with four significant digits, or a whole number with all of its digits.

    >>> format_number(0.0123456), format_number(20000.0), format_number(float("nan"))
    ('0.01235', '20000', 'nan')
    """
    return str(int(value)) if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"


def shortened(name: str, width: int) -> str:
    """Shorten a name to `width` characters with an ellipsis in the middle.

    >>> shortened("encoder/block_1/attention", 15)
    'encoder…tention'
    """
    half = width // 2
    return name if len(name) <= width else f"{name[:half]}\u2026{name[half + 1 - width :]}"


def shorten_list(names: Sequence[str], most: int = 3) -> str:
    """List the first few names and the number of further names.

    >>> shorten_list(["a", "b"]), shorten_list(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that match one of the patterns, which may contain the wildcards * and ?.

    >>> matching(["trn/loss", "vld/loss", "vld/accuracy"], ["vld/*", "trn/loss"])
    ['vld/loss', 'vld/accuracy', 'trn/loss']
    """
    known = list(names)
    found = [name for pattern in patterns for name in known if name == pattern or fnmatchcase(name, pattern)]
    return list(dict.fromkeys(found))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion for the end of an error message about an unknown word; empty if no known word is similar.

    >>> did_you_mean("Adm", ["adam", "sgd"]), did_you_mean("x", ["adam"])
    ("; did you mean 'adam'?", '')
    """
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), names, n=1)
    return f"; did you mean {names[near[0]]!r}?" if near else ""
