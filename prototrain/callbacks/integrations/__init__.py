"""Shells, processes and threads."""
