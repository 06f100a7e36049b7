from __future__ import annotations

import pytest
import tensorflow as tf

from prototrain.callbacks import RunOp
from tests.tiny import CountingTrainer, tiny_trainer


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [0, 5, 10]),
        ({"run_before": False}, [5, 10]),
        ({"run_as_trigger": False}, [0]),
        ({"run_before": False, "run_as_trigger": False, "run_step": True}, list(range(10))),
    ],
)
def test_when_it_runs(options: dict[str, bool], steps: list[int]) -> None:
    trainer, seen = CountingTrainer(), []
    trainer.train([RunOp(lambda: seen.append(trainer.global_step), **options)], steps_per_epoch=5, max_steps=10)
    assert seen == steps


def test_in_the_compiled_step() -> None:
    count = tf.Variable(0)
    trainer = tiny_trainer()
    trainer.train(
        [RunOp(lambda: count.assign_add(1), run_before=False, run_as_trigger=False, run_step=True)], max_steps=7
    )
    assert int(count) == 7
