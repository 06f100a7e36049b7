"""Callbacks that write scalars and summaries, and callbacks that record additional scalars."""
