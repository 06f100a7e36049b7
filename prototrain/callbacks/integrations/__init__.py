"""Shells, processes and threads, and callbacks of Keras."""
