"""One tower's `train_step`, compiled into a call of many steps that returns what it did.

Nothing here knows a trainer: a call is given a `StepPlan` and returns a `StepResult`, or raises a `StepFailure`.
"""
