"""A program for the tests of processes that a server forks."""

from __future__ import annotations

import os
import signal
import sys
import time


def main() -> int:
    """Do what the first argument says."""
    what, *more = sys.argv[1:]
    print(what, os.environ.get("FORKED"), os.getcwd(), sys.stdin.read(), "json" in sys.modules, flush=True)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "write":
        os.write(int(more[0]), b"written")
    if what == "raise":
        raise ValueError("as ordered")
    if what == "wait":
        time.sleep(60)
    return int(what) if what.isdecimal() else 0
