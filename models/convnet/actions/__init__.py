"""What can be done with the data beside training."""
