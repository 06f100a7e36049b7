"""What a run happens in, for environment.json: versions, command line, machine, commit and devices."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from typing import Any

_PACKAGES = ("prototrain", "tensorflow", "keras", "numpy")


def describe_environment(devices: list[str]) -> dict[str, Any]:
    """Describe this process, as JSON can hold it.

    Args:
        devices: those of TensorFlow, by name.
    """
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "directory": os.getcwd(),
        "host": platform.node(),
        "platform": platform.platform(),
        "git_commit": _git_commit(),
        "versions": versions(),
        "devices": devices,
    }


@functools.cache
def versions() -> dict[str, str]:
    """The versions of Python and of the packages that training depends on, by name."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def _git_commit() -> str | None:
    """The commit of the working directory, with "+changes" where files differ from it; None outside of git."""
    try:
        commit = _git("rev-parse", "HEAD")
        return commit + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
