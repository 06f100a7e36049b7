"""The action `inspect`: the parts of a model, printed."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from prototrain.actions import inspect
from prototrain.callbacks import (
    CheckNumerics,
    EnableCallbackIf,
    ExponentialMovingAverage,
    JSONWriter,
    ModelSaver,
    PeriodicTrigger,
    SaveOnExit,
    StatMonitorParamSetter,
    StopAfter,
    Summaries,
)
from tests.tiny import tiny_model


def printed(capsys: pytest.CaptureFixture[str], **model: Any) -> str:
    inspect.run(tiny_model(**model), Namespace())
    return capsys.readouterr().out


def test_variables_tensors_callbacks_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = printed(capsys)
    for words in ("fc0/kernel", "[8, 6]", "Validation", "every 100 steps", "SaveOnExit"):
        assert words in found
    # fc0 4 x 6 + 6, bn0 4 x 6, dropout's seed 2, logits 6 x 2 + 2
    assert "parameters  70, 56 of them trained\n" in found
    assert list(tmp_path.iterdir()) == []


def test_callbacks_are_listed_in_execution_order() -> None:
    setter = StatMonitorParamSetter("learning_rate", "vld/loss", lambda rate: rate / 2, mode="min", last_k=2)
    table = inspect.callback_table(
        [
            SaveOnExit(),
            PeriodicTrigger(Summaries(), every_k_epochs=2, every_k_steps=1),
            setter,
            EnableCallbackIf(CheckNumerics(), lambda trainer: True),
            ExponentialMovingAverage(0.9),
            StopAfter(hours=1),
            JSONWriter(),
            ModelSaver().every(seconds=60, before_train=True),
        ],
    )
    rows = [line.split() for line in str(table).splitlines()[2:]]
    assert [row[0] for row in rows] == [*["evaluate"] * 4, "decide", "write", "save", "save"]
    assert {row[1]: " ".join(row[2:]) for row in rows} == {
        "Summaries": "after each step and every 2 epochs and at the end after_run yes",
        "StatMonitorParamSetter": "after each epoch yes",
        "CheckNumerics": "after each epoch (EnableCallbackIf)",
        "ExponentialMovingAverage": "before train after_run yes",
        "StopAfter": "after steps it chooses yes",
        "JSONWriter": "at each scalar",
        "ModelSaver": "every 60 seconds and before training and at the end",
        "SaveOnExit": "before train, after train",
    }
