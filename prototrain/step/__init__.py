"""The compiled step: many iterations of `train_step` in one graph call."""
