"""Training of compiled Keras models, and adapters for Keras callbacks."""
