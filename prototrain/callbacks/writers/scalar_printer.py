"""Scalars as text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prototrain.callbacks.base import innermost
from prototrain.callbacks.monitor import Monitor, as_number
from prototrain.callbacks.writers.summaries import Summaries
from prototrain.errors import CallbackError
from prototrain.system.wording import in_digits

WIDTH = 110
NUMBER_WIDTH = 10  # the longest that a number gets, so that columns stay where they are from one table to the next


class ScalarPrinter(Monitor):
    """Prints the scalars of training, and what else was recorded since it printed last, as a small table.

    Those of training are means over the steps since the last record of `Summaries`; without `Summaries` in the list
    they are the last step's values.

        step 200, epoch 6    accuracy  learning_rate        loss
        trn                         1         0.0019      0.0714
        vld                    0.9741                     0.1087

    Args:
        whitelist: regular expressions; only scalars whose name one of them matches (`re.match`) are printed.
        blacklist: regular expressions; scalars whose name one of them matches are not printed.

    Raises:
        CallbackError: one of them is not a regular expression.
    """

    def __init__(self, *, whitelist: Iterable[str] | None = None, blacklist: Iterable[str] = ()) -> None:
        self._whitelist = None if whitelist is None else _compile(whitelist)
        self._blacklist = _compile(blacklist)
        self._recorded: dict[str, tuple[int, float]] = {}

    def setup(self) -> None:
        self._recorded = {}

    def put_scalar(self, name: str, value: float, step: int) -> None:
        self._recorded[name] = (step, value)

    def trigger(self) -> None:
        step = self.trainer.global_step
        scalars = self._recorded
        summaries = next((one for one in map(innermost, self.trainer.callbacks) if isinstance(one, Summaries)), None)
        prefix = "trn" if summaries is None else summaries.prefix
        for name, value in (self.trainer.outputs if summaries is None else summaries.means()).items():
            scalars[f"{prefix}/{name}"] = (step, as_number(name, value))
        self._recorded = {}
        rows: dict[str, dict[str, str]] = {}
        for name in filter(self._wanted, sorted(scalars)):
            at_step, value = scalars[name]
            prefix, slash, tag = name.partition("/")
            row = (prefix if slash else "") + ("" if at_step == step else f" (step {at_step})")
            rows.setdefault(row, {})[tag if slash else name] = in_digits(value)
        self.trainer.log(table(f"step {step}, epoch {self.trainer.epoch_num}", rows))

    def _wanted(self, name: str) -> bool:
        allowed = self._whitelist is None or any(pattern.match(name) for pattern in self._whitelist)
        return allowed and not any(pattern.match(name) for pattern in self._blacklist)


def table(title: str, rows: dict[str, dict[str, str]], width: int = WIDTH) -> str:
    """Lay out numbers with a column for each name; columns beyond the width go into a further block below.

    Args:
        title: stands above the names of the rows.
        rows: by their names, the numbers of each by column.
        width: in characters.
    """
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    widths = {column: max(len(column), NUMBER_WIDTH) for column in columns}
    margin = max(map(len, [title, *rows]))
    blocks: list[list[str]] = [[]]
    used = margin
    for column in columns:
        used += 2 + widths[column]
        if used > width and blocks[-1]:
            blocks.append([])
            used = margin + 2 + widths[column]
        blocks[-1].append(column)
    lines = []
    for number, block in enumerate(blocks):
        header = {column: column for column in block}
        for name, row in [("" if number else title, header), *rows.items()]:
            cells = [f"{row.get(column, ''):>{widths[column]}}" for column in block]
            if row is header or any(column in row for column in block):
                lines.append("  ".join([f"{name:<{margin}}", *cells]).rstrip())
    return "\n".join(lines)


def _compile(patterns: Iterable[str]) -> list[re.Pattern[str]]:
    if isinstance(patterns, str):
        raise CallbackError(f"ScalarPrinter takes lists of regular expressions, not the text {patterns!r}")
    try:
        return [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise CallbackError(f"ScalarPrinter: {error.pattern!r} is not a regular expression: {error.msg}") from error
