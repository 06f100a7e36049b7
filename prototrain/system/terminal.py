"""Printing: text that is safe to show on a terminal, and whether someone is typing into this process."""

from __future__ import annotations

import re
import sys
from typing import Any

# Control characters, with those that begin escape sequences; marks that change the direction of writing; characters
# that end a line for some programs only; lone surrogates, which no terminal can encode.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_LINE = re.compile(f"{_UNSAFE.pattern[:-1]}\t\n]")


def printable(text: str) -> str:
    r"""Escape the characters of a text that a terminal would not just show.

    >>> printable("a\x1b[2Jb"), printable("two\nlines")
    ('a\\x1b[2Jb', 'two\nlines')
    """
    return text if text.isprintable() else _UNSAFE.sub(_escaped, text)


def one_line(text: str) -> str:
    r"""Escape the same characters, tabs and newlines; for names.

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
    """Whether this process is an interpreter at a prompt, or the kernel of a notebook."""
    return hasattr(sys, "ps1") or in_notebook()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; importing one is not enough."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")
