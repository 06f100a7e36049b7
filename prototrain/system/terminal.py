"""Prints text that is safe for a terminal, and tables that fit its width."""

from __future__ import annotations

import io
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

if TYPE_CHECKING:
    from rich.console import Console
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


# -- tables ------------------------------------------------------------------------------------------------------------

WIDTH = 80
"""The width of tables in characters, if the output is not a terminal."""
_LEAST = 20  # minimum width of a folded value
_CUT, _SHORT = 60, 10  # width of a cell that is cut: without a terminal, and at least on a narrow one


@dataclass(frozen=True)
class Table:
    """A table with headers. Without headers, it is always printed as plain text.

    Attributes:
        rows: rows of cells: strings, numbers or None.
        headers: the names of the columns.
        colours: colours for cells that begin with one of these words, on a terminal.
        cut: headers of columns whose long cells end in an ellipsis; cells of other columns are folded.
        options: options of `tabulate`, which formats the table without a terminal. Number formats also apply on a
            terminal.
    """

    rows: Sequence[Sequence[Any]]
    headers: Sequence[str] = ()
    colours: Mapping[str, str] = field(default_factory=dict)
    cut: Collection[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Format the table with tabulate, with unsafe characters escaped."""
        cuts = [header in self.cut for header in self.headers] or [False] * len(self.rows[0])

        def shown(cell: Any, is_cut: bool) -> Any:
            text = one_line(cell) if isinstance(cell, str) else cell
            return f"{text[: _CUT - 1]}\u2026" if is_cut and isinstance(cell, str) and len(text) > _CUT else text

        rows = [[shown(*one) for one in zip(row, cuts, strict=True)] for row in self.rows]
        return tabulate(rows, headers=list(map(one_line, self.headers)), **self.options)

    def for_terminal(self, width: int, *, is_ruled: bool = False) -> RichTable:
        """Return a rich table for a width: columns in `cut` are made narrower first, then the others are folded."""
        from rich.box import Box
        from rich.table import Table as RichTable
        from rich.text import Text

        # The rule takes one column of the gap between two columns.
        box, gap = (Box("    \n    \n -  \n" + 5 * "    \n"), 1) if is_ruled else (None, 2)
        made = RichTable(box=box, padding=(0, gap, 0, 0), show_edge=False, pad_edge=False, header_style="bold")
        columns = zip(self.headers, *(map(self._text, row) for row in self.rows), strict=True)
        room = {number: max(map(len, cells)) for number, cells in enumerate(columns)}
        lacking = sum(room.values()) + 2 * (len(room) - 1) - width
        for number in sorted(room, key=lambda number: -room[number]):
            if self.headers[number] in self.cut and lacking > 0:
                give = max(0, min(lacking, room[number] - _SHORT))
                room[number], lacking = room[number] - give, lacking - give
        for number, header in enumerate(self.headers):
            are_numbers = all(isinstance(row[number], int | float | None) for row in self.rows)
            is_cut = header in self.cut
            made.add_column(
                one_line(header),
                overflow="ellipsis" if is_cut else "fold",
                no_wrap=is_cut,
                max_width=room[number] if is_cut else None,
                justify="right" if are_numbers else "left",
            )
        for row in self.rows:
            texts = map(self._text, row)
            made.add_row(*(Text(text, style=self.colours.get(text.partition(":")[0], "")) for text in texts))
        return made

    def _text(self, cell: Any) -> str:
        if isinstance(cell, bool) or not isinstance(cell, int | float):
            return "" if cell is None else one_line(str(cell))
        return format(cell, self.options.get("intfmt" if isinstance(cell, int) else "floatfmt", ""))


def console() -> Console | None:
    """Return a rich console for standard output, or None if it is not a terminal."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def show(*parts: Table | str, end: str = "\n") -> None:
    """Print tables and text. Tables are folded to the width of the terminal, or to `WIDTH` without a terminal."""
    terminal = console()
    for number, part in enumerate(parts):
        last = end if number == len(parts) - 1 else "\n"
        if isinstance(part, str) or not (part.headers and part.rows):
            say(part, end=last)
        elif terminal is not None:
            terminal.print(part.for_terminal(terminal.width))
            say("", end=last.removeprefix("\n"))
        else:
            is_wide = max(map(len, str(part).splitlines())) > WIDTH
            say(_drawn(part) if is_wide else part, end=last)


def _drawn(table: Table) -> str:
    from rich.console import Console

    lines = io.StringIO()
    Console(file=lines, width=WIDTH, highlight=False, no_color=True).print(table.for_terminal(WIDTH, is_ruled=True))
    return "\n".join(line.rstrip() for line in lines.getvalue().splitlines())


def plain_table(rows: Mapping[str, Any], *, width: int | None = WIDTH) -> str:
    """Format names and values as a table without lines.

    Args:
        rows: values by name.
        width: the maximum width in characters, reduced to the width of the terminal if there is one. Long values are
            folded at spaces. None folds no values.
    """
    texts = {one_line(name): printable(str(value)) for name, value in rows.items()}
    if width is not None:
        if sys.stdout.isatty():
            width = min(width, shutil.get_terminal_size().columns)
        room = max(width - max(map(len, texts)) - 2, _LEAST)
        folded = textwrap.TextWrapper(room, break_on_hyphens=False, break_long_words=False)
        texts = {name: folded.fill(text) for name, text in texts.items()}
    return tabulate(texts.items(), tablefmt="plain", disable_numparse=True)
