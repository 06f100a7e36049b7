"""Many runs of one model with different values in its config, on Optuna."""
