from __future__ import annotations

import json
from pathlib import Path

import pytest

from prototrain.callbacks import CallbackFactory, MaxSaver, MinSaver, ModelSaver, SaveOnExit
from prototrain.callbacks.base import Callback, Priority
from prototrain.errors import CallbackError
from tests.tiny import CountingTrainer

VALUES = [5.0, 3.0, 4.0, 4.0, 1.0, 2.0, 2.0, 2.0]


def measure() -> Callback:
    return CallbackFactory(
        trigger=lambda self: self.trainer.monitors.put_scalar("vld/x", VALUES[self.trainer.global_step - 1]),
        priority=Priority.EVALUATE,
    ).every(steps=1)


def checkpoints(experiment: Path) -> list[int]:
    return [int(path.name[5:]) for path in sorted((experiment / "checkpoints").glob("step-*"))]


@pytest.mark.parametrize(
    ("saver", "others", "max_steps", "kept"),
    [
        (MinSaver, [], 4, [2]),
        (MinSaver, [], 8, [5]),
        (MaxSaver, [], 8, [1]),
        (MinSaver, [ModelSaver(max_to_keep=2)], 8, [5, 7, 8]),
        (MinSaver, [ModelSaver(max_to_keep=2)], 4, [2, 3, 4]),
        (MaxSaver, [ModelSaver(max_to_keep=1)], 8, [1, 8]),
    ],
)
def test_what_is_kept(saver: type, others: list[Callback], max_steps: int, kept: list[int], experiment: Path) -> None:
    callbacks = [measure(), saver("vld/x").every(steps=1), *(other.every(steps=1) for other in others)]
    CountingTrainer(experiment=experiment).train(callbacks, max_steps=max_steps)
    assert checkpoints(experiment) == kept
    mode = saver.__name__[:3].lower()
    note = json.loads((experiment / "checkpoints" / f"{mode}-vld-x.json").read_text())
    assert note["checkpoint"] == f"step-{kept[0]:010d}" and note["value"] == VALUES[kept[0] - 1]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("stop", range(1, 8))
def test_a_resumed_run_keeps_the_same(stop: int, order: int, experiment: Path) -> None:
    for max_steps in (stop, 8):
        savers = [MinSaver("vld/x").every(steps=1), ModelSaver(max_to_keep=2).every(steps=1)][::order]
        trainer = CountingTrainer(experiment=experiment)
        trainer.train([measure(), *savers, SaveOnExit()], max_steps=max_steps)
        assert trainer.storage.resume_line().endswith("exact") or max_steps == stop
    assert checkpoints(experiment) == [5, 7, 8]


def test_a_stale_value_is_an_error(experiment: Path) -> None:
    with pytest.raises(CallbackError, match="no scalar 'vld/loss'"):
        CountingTrainer(experiment=experiment).train([measure(), MinSaver("vld/loss")], max_steps=2)
