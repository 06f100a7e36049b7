"""Callbacks for progress, speed, memory, profiles and tensors of a step."""
