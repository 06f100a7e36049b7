"""Whose a Python file is: prototrain's, the standard library's, an installed package's, or the user's."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

OURS = str(Path(__file__).parent.parent) + os.sep
STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep


def is_installed(file: str) -> bool:
    """Whether nobody would edit this file for a run: it is prototrain's or somebody has installed it."""
    return file.startswith((STANDARD_LIBRARY, OURS)) or "-packages" in file
