"""Callbacks that end a run: after a time, when nothing gets better, and when numbers are not finite."""
