"""Ending a run."""
