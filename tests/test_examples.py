from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.workloads import WORKLOADS, Workload
from examples import dqn, evolution
from prototrain import Callback
from prototrain.callbacks import JSONWriter, SaveOnExit, StopOnNaN, Summaries, Validation
from prototrain.checkpoint.store import Checkpoints
from prototrain.errors import StepError
from tests.tiny import PressesCtrlC, rows


def test_evolution_resumes_exactly(tmp_path: Path) -> None:
    def run(directory: Path, *callbacks: Callback) -> Any:
        trainer = evolution.EvolutionTrainer(experiment=directory)
        always = [Validation().every(steps=4), Summaries().every(steps=2), JSONWriter(), SaveOnExit()]
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
    assert rows(tmp_path / "whole") == rows(tmp_path / "stopped")


def test_evolution_learns() -> None:
    trainer = evolution.EvolutionTrainer()
    trainer.train([StopOnNaN()], max_steps=150)
    assert trainer.evaluate("vld")["accuracy"] > 0.85


def test_evolution_as_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for steps in ("3", "5"):  # the second run continues the first
        monkeypatch.setattr(sys, "argv", ["evolution.py", "--steps", steps, "--experiment", str(tmp_path / "run")])
        evolution.main()
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [3, 5]
    first, last = rows(tmp_path / "run")
    assert (first["step"], last["step"]) == (3, 5) and {"trn/loss", "vld/loss", "vld/accuracy"} <= set(last)


def test_dqn_learns_and_resumes_its_memory(tmp_path: Path) -> None:
    def run(steps: int, *callbacks: Callback) -> Any:
        trainer, of_example = dqn.make(tmp_path)
        trainer.train([*of_example, *callbacks], steps_per_epoch=250, max_steps=steps)
        return trainer

    with pytest.raises(KeyboardInterrupt):
        run(1200, PressesCtrlC(400))
    made = Checkpoints(tmp_path / "checkpoints", print).newest().variables()["callbacks/replay/made"]
    trainer = run(1200)
    assert trainer.run.start_row().startswith("resumed at step 400; data: restart")
    remembered = trainer.state["callbacks/replay/made"]
    assert made[0] >= 390 * dqn.MOVES_PER_BATCH and remembered[0] >= made[0] + 780 * dqn.MOVES_PER_BATCH
    assert trainer.monitors.latest("score/mean") > 0.2  # chance gives -0.6
    target, online = (trainer.variables[f"{name}/q/kernel"].numpy() for name in ("target", "online"))
    assert np.array_equal(target, online)  # as RunOp left them after step 1200
    assert not [thread for thread in threading.enumerate() if thread.name in ("player", "AsyncPredictor")]


def test_failing_player_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, action: int) -> None:
        raise ValueError("the game is broken")

    trainer, callbacks = dqn.make(None)
    monkeypatch.setattr(dqn.Catch, "step", fail)
    with pytest.raises(StepError, match=r"step 1 failed in the data: .*the game is broken"):
        trainer.train([callback for callback in callbacks if not isinstance(callback, (JSONWriter, SaveOnExit))][:5])


@pytest.mark.parametrize("workload", WORKLOADS.values())
def test_workloads(workload: Workload) -> None:
    batch = next(iter(workload.batches(lambda x, y: (x, y))))
    assert batch[0].shape == (workload.batch, *workload.shape)
    assert batch[0].dtype == workload.dtype
