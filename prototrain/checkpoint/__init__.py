"""Checkpoints of `trainer.state`: directories that are written atomically and verified when they are read."""
