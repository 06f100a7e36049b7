"""Changing a value while training, the learning rate above all."""
