from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from prototrain.callbacks import (
    CallbackFactory,
    EarlyStopping,
    ExponentialMovingAverage,
    JSONWriter,
    LearningRate,
    MaxSaver,
    MinSaver,
    ModelSaver,
    SaveOnExit,
    Summaries,
    Validation,
)
from prototrain.callbacks.base import Callback
from prototrain.checkpoint.store import verify
from prototrain.errors import CheckpointError
from prototrain.model.built import BuiltModel
from tests.callbacks.helpers import kept_steps, measures
from tests.tiny import CountingTrainer, rows, tiny_model, tiny_trainer, values

VALUES = [5.0, 3.0, 4.0, 4.0, 1.0, 2.0, 2.0, 2.0]


def measure() -> Callback:
    return measures("vld/x", lambda step: VALUES[step - 1])


def note(experiment: Path, stat: str = "min-vld-x") -> dict[str, Any]:
    """What is noted of the best checkpoint by a scalar."""
    return json.loads((experiment / "checkpoints" / f"{stat}.json").read_text())


@pytest.mark.parametrize(
    ("saver", "others", "max_steps", "kept"),
    [
        (MinSaver, [], 8, [5]),
        (MaxSaver, [], 8, [1]),
        (MinSaver, [ModelSaver(max_to_keep=2)], 4, [2, 3, 4]),
        (MaxSaver, [ModelSaver(max_to_keep=1)], 8, [1, 8]),
    ],
)
def test_kept_checkpoints(saver: type, others: list[Any], max_steps: int, kept: list[int], experiment: Path) -> None:
    callbacks = [measure(), saver("vld/x").every(steps=1), *(other.every(steps=1) for other in others)]
    CountingTrainer(experiment=experiment).train(callbacks, max_steps=max_steps)
    assert kept_steps(experiment) == kept
    mode = saver.__name__[:3].lower()
    found = note(experiment, f"{mode}-vld-x")
    assert found["checkpoint"] == f"step-{kept[0]:010d}" and found["value"] == VALUES[kept[0] - 1]


@pytest.mark.parametrize(("stop", "order"), [(1, 1), (5, -1), (6, 1)])
def test_resumed_run_keeps_the_same_checkpoints(stop: int, order: int, experiment: Path) -> None:
    for max_steps in (stop, 8):
        savers = [MinSaver("vld/x").every(steps=1), ModelSaver(max_to_keep=2).every(steps=1)][::order]
        trainer = CountingTrainer(experiment=experiment)
        trainer.train([measure(), *savers, SaveOnExit()], max_steps=max_steps)
        assert trainer.run.start_row().startswith("resumed") or max_steps == stop
    assert kept_steps(experiment) == [5, 7, 8]


def check_note(experiment: Path) -> None:
    """The checkpoint contains the score for which it was kept."""
    found, built = note(experiment, "min-vld-loss"), BuiltModel(tiny_model())
    built.restore_weights(verify(experiment / "checkpoints" / found["checkpoint"]), cure="")
    outcome = built.evaluate("vld")
    assert outcome is not None and outcome["loss"] == pytest.approx(found["value"], rel=1e-5)


def test_best_checkpoint_has_the_measured_weights(experiment: Path) -> None:
    """Early stopping by a scalar that gets worse ends the run at the best loss."""
    stopping = EarlyStopping("vld/worse", mode="min", patience=2, restore_best=True)

    def callbacks() -> list[Callback]:
        return [
            ModelSaver(asynchronous=True).every(steps=2),
            SaveOnExit(),
            stopping.every(steps=2),
            MinSaver("vld/loss").every(steps=2),
            ExponentialMovingAverage(0.5),
            Validation().every(steps=2),
            measures("vld/worse", float),
            LearningRate(lambda step: 0.02),
            Summaries().every(steps=1),
            JSONWriter(),
        ]

    trainer = tiny_trainer(experiment)
    trainer.train(callbacks())
    stopped = trainer.global_step
    # The best step is the very one at which other weights were put back.
    assert note(experiment, "min-vld-loss")["step"] == stopped < 20
    check_note(experiment)
    now, recorded = values(trainer), rows(experiment)

    again = tiny_trainer(experiment)  # the best weights are restored again, and the run stays stopped
    again.train(callbacks())
    assert again.global_step == stopped and values(again) == now
    assert "changed" not in again.run.start_row()
    assert rows(experiment) == recorded
    check_note(experiment)
    with pytest.raises(CheckpointError, match=r"needs an experiment|has no best checkpoint"):
        again.load_weights(experiment / "nothing", checkpoint="best")


def test_best_is_forgotten_if_a_run_resumes_before_it(experiment: Path) -> None:
    """A user deletes the newest checkpoints to continue from an older one."""

    def train(max_steps: int) -> None:
        savers = [MinSaver("vld/x").every(steps=1), ModelSaver(max_to_keep=9).every(steps=1)]
        CountingTrainer(experiment=experiment).train([measure(), *savers], max_steps=max_steps)

    train(5)
    assert note(experiment)["step"] == 5
    for step in (3, 4, 5):
        shutil.rmtree(experiment / "checkpoints" / f"step-{step:010d}")
    train(3)
    assert note(experiment) == {"stat": "vld/x", "value": 3.0, "step": 2, "checkpoint": "step-0000000002"}
    for step in (2, 3):
        shutil.rmtree(experiment / "checkpoints" / f"step-{step:010d}")
    train(1)
    assert note(experiment)["step"] == 1


def test_checkpoint_of_the_user_is_not_deleted(experiment: Path) -> None:
    saves = CallbackFactory(trigger=lambda me: me.trainer.save() if me.trainer.global_step == 2 else None)
    callbacks = [measure(), saves.every(steps=1), MinSaver("vld/x").every(steps=1)]
    CountingTrainer(experiment=experiment).train(callbacks, max_steps=8)
    assert kept_steps(experiment) == [2, 5]


def test_rejected_state_is_not_saved_as_best(experiment: Path) -> None:
    reject = CallbackFactory(trigger=lambda self: self.trainer.run.mark_failed())
    trainer = CountingTrainer(experiment=experiment)
    trainer.train([measure(), reject.every(steps=2), MinSaver("vld/x").every(steps=1)], max_steps=2)
    assert note(experiment)["step"] == 1
