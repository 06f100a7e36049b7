"""Sweeps with Optuna: many runs of one model with different config values."""
