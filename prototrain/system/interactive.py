"""Whether somebody types into this process."""

from __future__ import annotations

import sys


def is_interactive() -> bool:
    """Whether it is an interpreter at a prompt, or the kernel of a notebook."""
    return hasattr(sys, "ps1") or in_notebook()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; only to have imported one is not enough."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")
