"""How much of the processors a thread takes from others."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

NICENESS = 10
"""That of a thread that gives way, where others have 0: it has a tenth of what each of them has of a busy core."""


def give_way() -> None:
    """Let this thread have what the others leave; where only processes can, do nothing."""
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
