"""Writing down scalars, and making them from steps."""
