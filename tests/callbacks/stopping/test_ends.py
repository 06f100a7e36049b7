from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prototrain import Callback
from prototrain.callbacks import (
    CallbackFactory,
    CheckNumerics,
    EarlyStopping,
    MaxSaver,
    ModelSaver,
    SaveOnExit,
    StopAfter,
)
from prototrain.errors import NonFiniteError
from tests.callbacks.helpers import EachStep, kept, measures, timed
from tests.tiny import CountingTrainer, Records, tiny_trainer

VALUES = [5.0, 3.0, 4.0, 2.9, 3.0, 2.0, 2.0, 2.0, 2.0, 1.0]


def measure() -> Callback:
    return measures("vld/x", lambda step: VALUES[step - 1])


@pytest.mark.parametrize(
    ("options", "stops_at"),
    [
        ({"mode": "min", "patience": 1}, 3),
        ({"mode": "min", "patience": 2}, 8),
        ({"mode": "min", "patience": 2, "min_delta": 0.5}, 4),
        ({"mode": "max", "patience": 4}, 5),
        ({"mode": "min", "patience": 9}, 10),
    ],
)
def test_early_stopping(options: dict[str, Any], stops_at: int) -> None:
    trainer = CountingTrainer()
    trainer.train([measure(), EarlyStopping("vld/x", **options).every(steps=1)], max_steps=10)
    assert trainer.global_step == stops_at


@pytest.mark.parametrize("stop", [1, 4, 7, 8])
def test_patience_is_resumed(stop: int, experiment: Path) -> None:
    def train(max_steps: int, patience: int = 2) -> int:
        trainer = CountingTrainer(experiment=experiment)
        stopping = EarlyStopping("vld/x", mode="min", patience=patience)
        trainer.train([measure(), stopping.every(steps=1), SaveOnExit()], max_steps=max_steps)
        return trainer.global_step

    assert [train(stop), train(10), train(10), train(10, patience=5)] == [stop, 8, 8, 10]


def bits(variables: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: np.asarray(variable).tobytes() for name, variable in variables.items()}


def noted() -> Records:
    """Keeps the weights of each step."""
    return Records(lambda trainer: bits(trainer.model_variables))


@pytest.mark.parametrize("stops", [[10], [2, 7, 10]])
def test_best_weights_are_restored(stops: list[int], experiment: Path) -> None:
    seen = noted()
    for max_steps in stops:
        trainer = tiny_trainer(experiment)
        stopping = EarlyStopping("vld/x", mode="min", patience=2, restore_best=True)
        # It may be added in a later run.
        mine = [] if max_steps == 2 else [stopping.every(steps=1)]
        trainer.train([measure(), *mine, seen, SaveOnExit()], max_steps=max_steps)
        if max_steps != 10:  # the run ends before it fires
            assert seen.by_step[max_steps] == bits(trainer.variables)
        if max_steps == 7:
            assert "callback EarlyStopping/vld/x added" in trainer.run.start_row()
    now, saved = bits(trainer.variables), trainer.run.checkpoints.newest()
    assert trainer.global_step == saved.step == 8
    assert now == seen.by_step[6] != seen.by_step[7]
    assert now == {name: bits(saved.variables())[name] for name in now}


def test_only_kept_weights_are_restored(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`restore_best` is added after the best step, and removed again for a run that ends at once."""
    for max_steps, restores in ((7, False), (10, True), (10, False)):
        trainer = tiny_trainer(experiment)
        stopping = EarlyStopping("vld/x", mode="min", patience=2, restore_best=restores)
        before = noted()
        trainer.train([measure(), stopping.every(steps=1), before, SaveOnExit()], max_steps=max_steps)
    assert trainer.global_step == 8
    saved = trainer.run.checkpoints.newest().variables()
    trainer = tiny_trainer()
    trainer.train([seen := noted()], max_steps=8)
    assert {name: bits(saved)[name] for name in seen.by_step[8]} == seen.by_step[8]
    printed = capsys.readouterr().out
    assert printed.count("best 2 at step 6") == 2 and printed.count("whose weights were not kept") == 1


def test_weights_that_a_best_saver_keeps_are_not_replaced(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run ends at a step that is the best one by another scalar."""
    trainer, seen = tiny_trainer(experiment), noted()
    stopping = EarlyStopping("vld/x", mode="min", patience=2, restore_best=True).every(steps=1)
    best = MaxSaver("vld/step").every(steps=1)
    trainer.train([measure(), measures("vld/step", float), stopping, best, seen, SaveOnExit()], max_steps=10)
    saved = bits(trainer.run.checkpoints.newest().variables())
    assert {name: saved[name] for name in seen.by_step[8]} == seen.by_step[8]
    assert bits(trainer.variables) == seen.by_step[6]
    assert ", restored; the checkpoint of this step was written before" in capsys.readouterr().out


@pytest.mark.parametrize(("lengths", "ends"), [([20], 7), ([2, 4, 20], 7), ([20, 20], 7), ([4, 5], 5)])
def test_time_before_a_resume_counts(lengths: list[int], ends: int, experiment: Path) -> None:
    trainer: CountingTrainer

    def clock() -> float:
        return trainer.global_step * 10.0  # every step takes ten seconds

    for max_steps in lengths:
        trainer = CountingTrainer(experiment=experiment)
        trainer.train([timed(StopAfter(minutes=1), clock), EachStep(), SaveOnExit()], max_steps=max_steps)
    assert trainer.global_step == ends  # the time is up after step 6; the loop notices it before the next step


def test_check_numerics_ends_the_run_before_saving(experiment: Path) -> None:
    def spoil(self: CallbackFactory) -> None:
        if self.trainer.global_step == 6:
            kernel = self.trainer.state["logits/kernel"]
            kernel.assign(np.full(kernel.shape, np.nan))

    trainer = tiny_trainer(experiment)
    spoiler = CallbackFactory(trigger=spoil).every(steps=1)
    callbacks = [spoiler, CheckNumerics().every(steps=2), ModelSaver().every(steps=2), SaveOnExit()]
    with pytest.raises(NonFiniteError, match="after step 6, logits/kernel is not finite"):
        trainer.train(callbacks, max_steps=10)
    assert kept(experiment) == ["failed-0000000006", "step-0000000002", "step-0000000004"]
    CountingTrainer().train([CheckNumerics().every(steps=2)], max_steps=4)
