"""What feature columns make of the features; `prototrain.estimator.feature_column` has the functions that make them."""
