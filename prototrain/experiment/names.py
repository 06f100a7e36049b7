"""The names of files in an experiment's directory."""

from __future__ import annotations

import os
import re
from pathlib import Path

from prototrain.experiment.lock import LOCK

RECORD = "run.json"
_OWN_NAMES = {
    "config.json", "config.txt", "source", "environment.json", "checkpoints", "summaries", "metrics.jsonl",
    "metrics.superseded.jsonl", "train.log", LOCK, "analysis", "exported", "hyper.txt", RECORD,
    "report.html", ".token",
}  # fmt: skip
STEP = re.compile(r"step-(\d{10,})")
"""The pattern of the name of a checkpoint's directory."""
MIRRORS = "mirrors"
"""The cache directory for the local copies of experiments at URLs."""
META = "meta.json"
"""The file of a checkpoint that lists its other files with checksums."""
MARKS = ("config.json", "environment.json")
"""Files that identify an experiment directory."""


def checkpoint_steps(directory: Path) -> list[int]:
    """Return the sorted steps of the checkpoints in a directory, verified or not; [] if there is no directory."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in map(STEP.fullmatch, names) if match)


def is_own(name: str) -> bool:
    """Return whether a run creates files of this name, such as superseded checkpoints and temporary files."""
    return name in _OWN_NAMES or name.startswith(("checkpoints.superseded-", ".tmp-"))
