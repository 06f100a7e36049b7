"""One tower's `train_step`, compiled into a call of many steps that returns what it did. Knows no trainer."""
