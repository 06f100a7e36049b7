"""Callbacks that measure on held-out data, and what they measure it with."""
