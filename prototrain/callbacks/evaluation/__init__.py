"""Measuring on held-out data."""
