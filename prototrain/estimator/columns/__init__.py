"""Feature columns; `prototrain.estimator.feature_column` has the functions that make them."""
