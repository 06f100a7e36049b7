"""Callbacks that change the learning rate and other hyperparameters during training."""
