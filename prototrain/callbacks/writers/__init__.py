"""Callbacks that write scalars and summaries down, or add scalars for the others to write."""
