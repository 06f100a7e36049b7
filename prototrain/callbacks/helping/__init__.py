"""Shells, processes, and callbacks from elsewhere."""
