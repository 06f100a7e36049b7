"""Runs under `tf.config.experimental.enable_op_determinism()`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain import SimpleTrainer
from prototrain.callbacks import LearningRate, SaveOnExit, StopOnNaN, Summaries, Validation
from tests.tiny import tiny_build, tiny_model


@pytest.fixture
def deterministic() -> Iterator[None]:
    from tensorflow.python.framework.config import disable_op_determinism

    tf.config.experimental.enable_op_determinism()
    yield
    disable_op_determinism()


def with_rows(inputs: Any, train_phase: bool) -> Any:
    """A model with a sparse gradient and with summaries."""
    words = tf.cast(tf.abs(inputs["x"]) * 10, tf.int32) % 7
    rows = keras.layers.Embedding(7, 3, name="embedding")(words)
    tf.summary.histogram("rows", rows)
    return tiny_build({**inputs, "x": tf.reshape(rows, [-1, 12])}, train_phase)


@pytest.mark.usefixtures("deterministic")
def test_run_trains_and_resumes(tmp_path: Path) -> None:
    config: dict[str, Any] = {"model__clip_gradients__global_norm": 1.0, "model__accumulate_steps": 2}
    for steps in (4, 6):
        trainer = SimpleTrainer(tiny_model(build=with_rows, **config), experiment=tmp_path)
        watching = [Validation().every(steps=4), Summaries().every(steps=2)]
        trainer.train([LearningRate(lambda step: 0.01), *watching, StopOnNaN(), SaveOnExit()], max_steps=steps)
    assert trainer.global_step == 6 and trainer.run.resume_line().startswith("resumed at step 4")
