"""Runs that have been: reading, comparing, plotting, reporting and repeating them. Needs no TensorFlow."""

from prototrain.runs.reading import Run, find_runs, flat, read_run, settings
from prototrain.runs.series import Range

__all__ = ["Range", "Run", "find_runs", "flat", "read_run", "settings"]
