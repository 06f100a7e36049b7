"""The compiled step: many iterations of `train_step` in one graph call.

This package does not depend on trainers: a call is made from a `StepPlan` and returns a `StepResult`.
"""
