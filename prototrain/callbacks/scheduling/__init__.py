"""When other callbacks run, and callbacks made of a function."""
