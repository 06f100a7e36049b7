"""Functions to read, compare, plot, report and repeat experiments. Only repeating needs TensorFlow."""

from prototrain.runs.reading import Range, Run, find_runs, flat, read_run, settings, short_names

__all__ = ["Range", "Run", "find_runs", "flat", "read_run", "settings", "short_names"]
