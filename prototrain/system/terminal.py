"""Text that others have chosen, such as names of experiments and scalars, as a terminal can show it unharmed."""

from __future__ import annotations

import re
import sys
from typing import Any

# Control characters, among them those that begin escape sequences; what turns the direction of writing around; what
# ends lines for some programs only; halves of characters, which no terminal can be given.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_LINE = re.compile(f"{_UNSAFE.pattern[:-1]}\t\n]")


def printable(text: str) -> str:
    r"""A text without what would make a terminal do more than show it.

    >>> printable("a\x1b[2Jb"), printable("two\nlines")
    ('a\\x1b[2Jb', 'two\nlines')
    """
    return text if text.isprintable() else _UNSAFE.sub(_escaped, text)


def one_line(text: str) -> str:
    r"""The same in one line, for names.

    >>> one_line("two\nlines")
    'two\\nlines'
    """
    return text if text.isprintable() else _UNSAFE_IN_LINE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def say(*values: Any, end: str = "\n", to_stderr: bool = False) -> None:
    """Print values as `print` does, without what would make a terminal do more than show them."""
    print(printable(" ".join(map(str, values))), end=end, file=sys.stderr if to_stderr else sys.stdout, flush=True)
