"""Callbacks that decide when, or whether, others run, and those that are made of a function."""
