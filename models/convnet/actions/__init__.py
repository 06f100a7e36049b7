"""Actions on the data."""
