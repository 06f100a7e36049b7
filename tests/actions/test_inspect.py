from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from prototrain.actions import inspect
from prototrain.callbacks import ExponentialMovingAverage, JSONWriter, SaveOnExit, Summaries
from tests.tiny import tiny_model


def test_variables_tensors_callbacks_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    inspect.run(tiny_model(), Namespace())
    found = capsys.readouterr().out
    for words in ("fc0/kernel", "[8, 6]", "Validation", ".every(steps=100)", "SaveOnExit"):
        assert words in found
    # fc0 4 x 6 + 6, bn0 4 x 6, dropout's seed 2, logits 6 x 2 + 2
    assert "parameters  70, 56 of them trained\n" in found
    assert list(tmp_path.iterdir()) == []


def test_callbacks_are_listed_in_execution_order() -> None:
    callbacks = [SaveOnExit(), Summaries().every(steps=1, epochs=2), ExponentialMovingAverage(0.9), JSONWriter()]
    rows = [line.split() for line in str(inspect.callback_table(callbacks)).splitlines()[2:]]
    assert [" ".join(row) for row in rows] == [
        "evaluate Summaries().every(steps=1, epochs=2)",
        "evaluate ExponentialMovingAverage()",
        "write JSONWriter()",
        "save SaveOnExit()",
    ]
