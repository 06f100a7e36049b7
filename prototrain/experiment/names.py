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
"""The name of a checkpoint's directory."""
MIRRORS = "mirrors"
"""The directory of the cache that has the copies of experiments at URLs."""
META = "meta.json"
"""The file of a checkpoint that lists the others, with checksums."""
MARKS = ("config.json", "environment.json")
"""Files that tell an experiment's directory from any other."""


def checkpoint_steps(directory: Path) -> list[int]:
    """The steps that a directory has checkpoints of, verified or not, in ascending order; none if it is not there."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in map(STEP.fullmatch, names) if match)


def is_own(name: str) -> bool:
    """Whether a run makes files of this name: its own, checkpoints set aside, and what a killed write has left."""
    return name in _OWN_NAMES or name.startswith(("checkpoints.superseded-", ".tmp-"))
