"""The endless stream of training batches, and its position."""
