"""Table of scalars."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from tqdm import tqdm

from prototrain.callbacks.monitor import Monitor, as_number, split_name
from prototrain.callbacks.writers.summaries import Summaries
from prototrain.errors import CallbackError
from prototrain.system.terminal import (
    format_clock,
    format_number,
    is_terminal,
    one_line,
    printable,
    shorten_list,
    shortened,
)

_WIDTH = 120  # without a terminal
_NUMBER = 10  # width of the longest number
_LONGEST_NAME = 24
_LEAD = ("step", "epoch", "time", "steps/s", "data")
_OF_ENGINE = {"checkpoint", "cluster", "hyper", "perf"}  # prefixes of the last columns

Row = tuple[Sequence[str], Mapping[str, str]]
"""One dataset at one step: texts of the `_LEAD` columns, and a number and a star or a space by column."""


class ScalarPrinter(Monitor):
    """Prints the training scalars and all scalars recorded since the last print, one line per dataset.

         step  epoch      time  steps/s  data       loss     accuracy  learning_rate
          100      3      0:03    1,240  trn      0.1599       0.9631       0.002405
                                         vld      0.1367*      0.9667

    Training scalars are means over the steps since the last record of `Summaries`, or the last step's values without
    `Summaries` in the list. "steps/s" is the speed since the last line, without the time of callbacks. A star marks the
    best value so far, for losses on held-out data and for scalars that a saver or `EarlyStopping` watches. Columns that
    do not fit into the terminal are omitted.

    Args:
        whitelist: regular expressions; print only scalars whose name has a match of one of them (`re.search`).
        blacklist: regular expressions; do not print scalars whose name has a match of one of them.

    Raises:
        CallbackError: `whitelist` or `blacklist` is a string or not made of regular expressions.
    """

    def __init__(self, *, whitelist: Iterable[str] = (".*",), blacklist: Iterable[str] = ()) -> None:
        if isinstance(whitelist, str) or isinstance(blacklist, str):
            raise CallbackError("ScalarPrinter takes lists of regular expressions, not a text")
        try:
            self._whitelist, self._blacklist = ([re.compile(one) for one in given] for given in (whitelist, blacklist))
        except re.error as error:
            raise CallbackError(f"ScalarPrinter: {error.pattern!r} is not a regular expression: {error}") from error

    def setup(self) -> None:
        self._recorded: dict[str, tuple[int, float]] = {}
        self._prefixes: dict[str, set[str]] = {}  # by column
        self._header: tuple[list[int], list[str]] = [], []  # widths and columns of the last header
        self._has_left_out = False

    def before_train(self) -> None:
        self._since = self.trainer.global_step, self.trainer.times.steps

    def put_scalars(self, values: Mapping[str, float], step: int) -> None:
        self._recorded |= {name: (step, value) for name, value in values.items()}

    def trigger(self) -> None:
        rows = self._rows()
        if not rows:
            return
        columns = sorted(self._prefixes, key=self._rank)
        width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else _WIDTH
        prefixes = set().union(*self._prefixes.values())
        step_width = 5 if self.trainer.is_endless else max(5, len(str(self.trainer.total_steps)))
        widths = [step_width, 5, 8, 7, max(4, *(len(one_line(prefix)) for prefix in prefixes))]
        shown = _that_fit(columns, width - sum(widths) - 2 * len(widths))
        lines = [_line(row, widths, shown) for row in rows if row[0][0] or row[1].keys() & shown]
        if (widths, shown) != self._header:
            left_out = [column for column in columns if column not in shown]
            if left_out and not self._has_left_out:
                self._has_left_out = True
                self.trainer.log(f"columns that do not fit: {shorten_list(left_out)}")
            self._header = widths, shown
            lines.insert(0, _line((_LEAD, {name: f"{_short(name)} " for name in shown}), widths, shown))
        self.trainer.run.log_to_file("\n".join(lines))
        with suppress(OSError, AttributeError):  # AttributeError: stdout is closed
            tqdm.write("\n".join(map(printable, lines)))

    def _rows(self) -> list[Row]:
        """Return the scalars to print, one row for each prefix and step."""
        trainer, step = self.trainer, self.trainer.global_step
        scalars, self._recorded = self._recorded, {}
        summaries = next(iter(trainer.callbacks.of_class(Summaries)), None)
        for name, value in (trainer.outputs if summaries is None else summaries.means()).items():
            scalars[f"trn/{name}"] = (step, as_number(name, value))
        best = trainer.monitors.best()
        cells: dict[tuple[int, bool, str], dict[str, str]] = {}
        for name in filter(self._is_wanted, sorted(scalars)):
            at_step, value = scalars[name]
            prefix, column = split_name(name)
            self._prefixes.setdefault(column, set()).add(prefix)
            text = format_number(value) + ("*" if best.get(name) == (at_step, value) else " ")
            cells.setdefault((at_step, prefix != "trn", prefix), {})[column] = text
        if scalars and not cells:
            trainer.run.log_once(f"WARNING: ScalarPrinter: no pattern matches any of {shorten_list(sorted(scalars))}")
        before, self._since = self._since, (step, trainer.times.steps)
        steps, seconds = (now - then for now, then in zip(self._since, before, strict=True))
        speed = steps / seconds if seconds > 0 else 0.0
        elapsed = format_clock(trainer.times.clock() - trainer.times.began)
        now = [str(trainer.epoch_num), elapsed, f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"]
        found: list[Row] = []
        last = -1
        for key in sorted(cells):
            at_step, _, prefix = key
            is_first, last = at_step != last, at_step
            lead = [str(at_step) if is_first else "", *(now if is_first and at_step == step else ["", "", ""])]
            found.append(([*lead, one_line(prefix)], cells[key]))
        return found

    def _rank(self, column: str) -> tuple[bool, bool, bool, str]:
        """Return a sort key: the loss, then scalars of several datasets, then others, then scalars of the engine."""
        prefixes = self._prefixes[column]
        return column != "loss", prefixes <= _OF_ENGINE, len(prefixes) == 1, column

    def _is_wanted(self, name: str) -> bool:
        is_allowed = any(pattern.search(name) for pattern in self._whitelist)
        return is_allowed and not any(pattern.search(name) for pattern in self._blacklist)


def _short(name: str) -> str:
    return shortened(one_line(name), _LONGEST_NAME)


def _width(column: str) -> int:
    return max(len(_short(column)), _NUMBER)


def _that_fit(columns: list[str], room: int) -> list[str]:
    """Return the columns that fit into `room` characters, at least one."""
    shown: list[str] = []
    for column in columns:
        if _width(column) + 2 <= room or not shown:
            room -= _width(column) + 2
            shown.append(column)
    return shown


def _line(row: Row, widths: list[int], columns: list[str]) -> str:
    *lead, data = row[0]  # only the dataset's name is left-aligned
    first = [f"{text:>{width}}" for text, width in zip(lead, widths, strict=False)]
    cells = [f"{row[1].get(column, ''):>{_width(column) + 1}}" for column in columns]
    return " ".join(["  ".join([*first, f"{data:<{widths[-1]}}"]), *cells]).rstrip()
