"""Experiment directories written without a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "started": "then",
    "command": ["prototrain"],
    "run_id": "1",
    "versions": {"keras": "3.1.0"},
    "devices": ["CPU:0"],
}
ROWS = [
    {"step": 50, "time": 1010.0, "trn/loss": 0.5},
    {"step": 100, "time": 1020.0, "trn/loss": 0.25, "vld/loss": 0.4},
    {"step": 150, "time": 1030.0, "trn/loss": 0.125, "vld/loss": 0.75},
]


def part(**facts: Any) -> dict[str, Any]:
    """A part of run.json: 150 of 200 steps in 40 seconds."""
    return {
        "started": 1000.0,
        "state": "finished",
        "start": "fresh",
        "first_step": 0,
        "step": 150,
        "total_steps": 200,
        "seconds": 40.0,
        "callbacks": {"Validation": 10.0, "JSONWriter": 2.0},
        "changes": [],
        **facts,
    }


def running(**facts: Any) -> dict[str, Any]:
    """A part without an end."""
    return part(**{"state": "running", "step": None, "seconds": None, "callbacks": {}, **facts})


def make(
    directory: Path,
    *parts: dict[str, Any],
    rows: list[dict[str, Any]] = ROWS,
    config: dict[str, Any] | None = None,
    environment: dict[str, Any] = ENVIRONMENT,
    checkpoints: tuple[int, ...] = (),
) -> Path:
    """Write an experiment; with one finished part if none are given."""
    directory.mkdir(parents=True)
    (directory / "environment.json").write_text(json.dumps(environment))
    (directory / "config.json").write_text(json.dumps({"trainer.experiment_name": directory.name, **(config or {})}))
    (directory / "run.json").write_text(json.dumps({"parts": parts or [part()]}))
    if rows:
        (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step in checkpoints:
        (directory / "checkpoints" / f"step-{step:010d}").mkdir(parents=True)
    return directory
