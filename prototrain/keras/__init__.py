"""Keras models and Keras callbacks in the training loop."""
