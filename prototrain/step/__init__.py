"""The compiled step: many iterations of `train_step` in one graph call.

Nothing here imports a trainer: a call is made from a `StepPlan` and returns a `StepResult`.
"""
