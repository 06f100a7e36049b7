"""Talking to the machine and the terminal: signals, whole files, tracebacks, wording. Knows nothing of training."""
