"""Counters in traced code and elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from prototrain import AsyncTrainer, Callback, SimpleTrainer, SyncReplicatedTrainer, current_tower
from prototrain.callbacks import SaveOnExit, Summaries, Validation
from tests.tiny import tiny_build, tiny_model


def build(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    net.now = tf.cast(current_tower().global_step, tf.float32)
    return net


class InTrace(Callback):
    """Records the counters in each iteration."""

    def setup(self) -> None:
        self.seen = self.trainer.state["callbacks/seen"] = tf.Variable(tf.zeros([20, 3], tf.int64))

    def before_run(self) -> None:
        trainer = self.trainer
        now = tf.stack([trainer.global_step, trainer.epoch_num, trainer.local_step])
        self.seen.scatter_nd_add([[trainer.counter.begun]], [now])


def test_step_number_in_each_step(tmp_path: Path) -> None:
    first, now = SimpleTrainer(tiny_model(build=build), experiment=tmp_path), ([[0.0] * 4], ["now"])
    predict = first.get_predictor(["x"], now[1])
    assert predict(now[0]) == [0]
    first.train([InTrace(), SaveOnExit()], steps_per_epoch=4, max_steps=3)
    assert predict(now[0]) == [3] and "global_step" not in first.variables
    again, seen = SimpleTrainer(tiny_model(build=build), experiment=tmp_path), InTrace()
    again.train([seen, Summaries(), Validation(), SaveOnExit()], steps_per_epoch=4, max_steps=10)
    assert seen.seen.numpy().tolist()[:10] == [[step, step // 4 + 1, step % 4] for step in range(10)]
    assert again.run.resume_line().startswith("resumed at step 3")
    assert again.monitors.latest("trn/now") == 8.5 and again.outputs["now"] == 9  # the mean of 8 and 9
    assert again.monitors.history("vld/now") == [(4, 4.0), (8, 8.0), (10, 10.0)]


@pytest.mark.parametrize("make", [SyncReplicatedTrainer, AsyncTrainer], ids=lambda make: make.__name__)
def test_several_towers(make: Any) -> None:
    trainer, seen = make(tiny_model(build=build), towers="cpu:2"), InTrace()
    trainer.train([seen], steps_per_epoch=4, max_steps=4)
    assert seen.seen.numpy().tolist()[:4] == [[step, 1, step] for step in range(4)]
    assert trainer.outputs["now"] == 3 or make is AsyncTrainer
