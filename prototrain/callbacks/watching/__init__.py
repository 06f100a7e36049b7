"""Showing how a run goes."""
