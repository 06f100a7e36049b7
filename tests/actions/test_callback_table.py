from __future__ import annotations

from prototrain.actions.inspect import callback_table
from prototrain.callbacks import (
    CheckNumerics,
    EnableCallbackIf,
    ExponentialMovingAverage,
    JSONWriter,
    LearningRate,
    ModelSaver,
    PeriodicTrigger,
    SaveOnExit,
    StatMonitorParamSetter,
    StopAfter,
    StopOnNaN,
    Summaries,
    Validation,
)


def test_the_table_is_in_the_order_of_running() -> None:
    setter = StatMonitorParamSetter("learning_rate", "vld/loss", lambda rate: rate / 2, mode="min", last_k=2)
    table = callback_table(
        [
            SaveOnExit(),
            LearningRate(lambda step: 0.1),
            PeriodicTrigger(Summaries(), every_k_epochs=2, every_k_steps=1),
            setter,
            EnableCallbackIf(CheckNumerics(), lambda trainer: True),
            ExponentialMovingAverage(0.9),
            StopAfter(hours=1),
            StopOnNaN(),
            JSONWriter(),
            ModelSaver().every(seconds=60, before_train=True),
            Validation().every(steps=100),
        ],
    )
    rows = [line.split() for line in str(table).splitlines()]
    stages = [row[0] for row in rows[2:]]
    assert stages == [*["evaluate"] * 7, "decide", "write", "save", "save"]
    by_name = {row[1]: " ".join(row[2:]) for row in rows[2:]}
    assert by_name == {
        "Validation": "every 100 steps and at the end",
        "LearningRate": "before train before_run",
        "Summaries": "after each step and every 2 epochs and at the end after_run yes",
        "StatMonitorParamSetter": "after each epoch yes",
        "CheckNumerics": "after each epoch (EnableCallbackIf)",
        "ExponentialMovingAverage": "before train after_run yes",
        "StopAfter": "after steps it chooses yes",
        "StopOnNaN": "after train",
        "JSONWriter": "at each scalar",
        "ModelSaver": "every 60 seconds and before training and at the end",
        "SaveOnExit": "before train, after train",
    }
