from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from prototrain.callbacks import RunOp
from prototrain.errors import CallbackError
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


WEIGHT = tf.Variable(0.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (WEIGHT.assign(1.0), "the value of an op that has run already; write RunOp"),
        (None, "the value of an op that has run already"),
        (tf.constant(1), "the value of an op that has run already"),
        ([WEIGHT.assign], "got a list"),
        (lambda target: target, "needs some: missing a required argument: 'target'"),
    ],
)
def test_what_is_no_function(given: Any, words: str) -> None:
    with pytest.raises(CallbackError, match=words):
        RunOp(given)


def test_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    CountingTrainer().train([RunOp(tf.function(lambda: WEIGHT.assign(2.0)), verbose=True)], max_steps=1)
    assert WEIGHT.numpy() == 2 and capsys.readouterr().out.count("RunOp has called <lambda> after step 1") == 1


def test_in_the_compiled_step() -> None:
    count = tf.Variable(0)
    trainer = tiny_trainer()
    trainer.train(
        [RunOp(lambda: count.assign_add(1), run_before=False, run_as_trigger=False, run_step=True)], max_steps=7
    )
    assert int(count) == 7
