from __future__ import annotations

import time
from pathlib import Path

import pytest
import tensorflow as tf

from prototrain import Callback
from prototrain.experiment.record import read_attempts
from prototrain.trainers.report import RunTimes
from tests.tiny import CountingTrainer, tiny_datasets, tiny_trainer


class Slow(Callback):
    def trigger_step(self) -> None:
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("steps", "tracing", "input_", "callbacks", "expected"),
    [
        (70.0, 10.0, 0.0, {"Slow": 15.0, "Quick": 0.5}, "training 70%, compiling 10%, Slow 15%, other 5%"),
        (90.0, 0.0, 6.0, {}, "training 90% (input 6%), other 10%"),
        (100.0, 0.0, 0.5, {}, "training 100%, other 0%"),
        (80.0, 0.0, 0.0, {"A": 8.0, "B": 6.0, "C": 6.0}, "training 80%, A 8%, other 12%"),
    ],
)
def test_the_shares(steps: float, tracing: float, input_: float, callbacks: dict[str, float], expected: str) -> None:
    now = 1000.0
    times = RunTimes(clock=lambda: now)
    now += 100
    times.steps, times.tracing, times.input = steps, tracing, input_
    assert times.report(callbacks) == f"time 1 min 40 s: {expected}"


def test_a_callback_is_named_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    CountingTrainer().train([Slow()], max_steps=5)
    assert ", Slow " in capsys.readouterr().out.splitlines()[-1]


def test_a_slow_dataset_is_noticed(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def work(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        # What a worn-out disk is in practice: some milliseconds that depend on the batch.
        x = tf.random.stateless_normal([400, 400], [1, tf.cast(batch["y"][0], tf.int32)])
        for _ in range(3):
            x = tf.linalg.matmul(x, x) / 1000.0
        return {**batch, "x": batch["x"] + 0.0 * tf.reduce_sum(x)}

    trainer = tiny_trainer(experiment, datasets=lambda: {"trn": tiny_datasets()["trn"].map(work)})
    trainer.train([], max_steps=40)
    assert "(input " in capsys.readouterr().out
    (part,) = read_attempts(experiment / "run.json")
    assert part.loop["waiting for input"] > 0.25 * part.loop["steps"] > 0
    assert part.loop["tracing"] > 0
