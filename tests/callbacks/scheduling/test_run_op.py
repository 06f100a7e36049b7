from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import tensorflow as tf

from prototrain.callbacks import EarlyStopping, InferenceRunner, RunOp, SaveOnExit, ScalarStats
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


def test_it_runs_in_the_order_of_the_list_with_evaluations(experiment: Path) -> None:
    order: list[str] = []
    at_end = {"run_before": False}

    class Names(ScalarStats):
        def result(self, sums: Sequence[float]) -> dict[str, float]:
            order.append("evaluation")
            return super().result(sums)

    resets = [RunOp(lambda name=name: order.append(name), **at_end) for name in "abc"]
    runners = [InferenceRunner("vld", Names("loss"), prefix=prefix, rehearse=False) for prefix in ("one", "two")]
    decides = EarlyStopping("two/loss", mode="min", patience=5)
    callbacks = [SaveOnExit(), decides, resets[0], runners[0], resets[1], runners[1], resets[2]]
    tiny_trainer(experiment).train(callbacks, max_steps=5)
    assert order == ["a", "evaluation", "b", "evaluation", "c"]
    assert decides.best.step == 5
