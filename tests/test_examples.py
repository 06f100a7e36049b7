"""The examples run, learn and resume."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from prototrain import Callback
from prototrain.callbacks import JSONWriter, SaveOnExit, StopOnNaN, Summaries, Validation
from prototrain.checkpoint import Checkpoints
from tests.conftest import ROOT
from tests.tiny import PressesCtrlC


@pytest.fixture(scope="module")
def evolution() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evolution", ROOT / "examples" / "evolution.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_evolution_stopped_and_resumed_ends_in_the_same_bits(evolution: ModuleType, tmp_path: Path) -> None:
    def run(directory: Path, *callbacks: Callback) -> Any:
        trainer = evolution.EvolutionTrainer(experiment=directory)
        always = [Validation().every(steps=4), Summaries().every(steps=2), JSONWriter(clock=lambda: 0.0), SaveOnExit()]
        trainer.train([*always, *callbacks], max_steps=12)
        return trainer

    whole = run(tmp_path / "whole")
    for step in (3, 8):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "stopped", PressesCtrlC(step))
    resumed = run(tmp_path / "stopped")
    assert whole.state["weights"].tobytes() == resumed.state["weights"].tobytes()
    assert whole.state["velocity"].tobytes() == resumed.state["velocity"].tobytes()
    assert resumed.state["weights"].dtype == np.float32
    metrics = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "stopped")]
    assert metrics[0] == metrics[1]


def test_evolution_learns(evolution: ModuleType) -> None:
    trainer = evolution.EvolutionTrainer()
    trainer.train([StopOnNaN()], max_steps=150)
    assert trainer.evaluate("vld")["accuracy"] > 0.85


def test_evolution_as_a_script(evolution: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for steps in ("3", "5"):  # run again with more steps, it goes on
        monkeypatch.setattr(sys, "argv", ["evolution.py", "--steps", steps, "--experiment", str(tmp_path / "run")])
        evolution.main()
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [3, 5]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [3, 5]
    assert {"trn/loss", "vld/loss", "vld/accuracy"} <= set(rows[-1])
