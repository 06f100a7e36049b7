"""Callbacks that show progress, memory, speed, profiles, and tensors of a step."""
