"""Callbacks that show how a run goes: progress, memory, speed, profiles, and tensors of a step."""
