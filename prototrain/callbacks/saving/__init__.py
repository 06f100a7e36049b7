"""Callbacks that write checkpoints: at intervals, of the best step, and on every way out of a run."""
