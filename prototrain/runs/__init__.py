"""Reading, comparing, plotting, reporting and repeating experiments. Needs no TensorFlow, except for repeating."""

from prototrain.runs.metrics import Range
from prototrain.runs.reading import Run, find_runs, flat, read_run, settings, short_names

__all__ = ["Range", "Run", "find_runs", "flat", "read_run", "settings", "short_names"]
