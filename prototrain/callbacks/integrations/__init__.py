"""Callbacks that stand beside training: shells, processes and threads, and callbacks of Keras."""
