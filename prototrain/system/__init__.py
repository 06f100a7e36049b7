"""Helpers for the operating system and the terminal: signals, files, tracebacks, text. Independent of training."""
