"""Callbacks that change a value while training, above all the learning rate."""
