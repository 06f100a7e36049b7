"""Callbacks that evaluate the model on held-out data."""
