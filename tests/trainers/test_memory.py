"""Out-of-memory errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.callbacks import ModelSaver
from prototrain.errors import OutOfMemoryError
from tests.tiny import At, CountingTrainer, tiny_build, tiny_trainer

_PETABYTES = 10**16  # more than the address space


def big(inputs: Any) -> tf.Tensor:
    """Fails when it is computed, not while it is traced."""
    many = 10000 * (1 + tf.cast(tf.reduce_mean(inputs["x"]) * 0, tf.int32))
    return tf.reduce_sum(tf.zeros([100000, 100000, many, 100]))


def build_of(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    net.loss += 0.0 if tf.executing_eagerly() else big(inputs)
    return net


def test_in_a_callback(experiment: Path) -> None:
    callbacks = [ModelSaver().every(steps=2), At(3, lambda: np.ones(_PETABYTES))]
    with pytest.raises(OutOfMemoryError, match="Unable to allocate") as raised:
        CountingTrainer(experiment=experiment).train(callbacks, max_steps=4)
    said = str(raised.value)
    assert said.startswith("out of memory: after step 3: ") and "\n" not in said
    assert "(test_memory.py, line " in said and "a resume continues from the checkpoint of step 2" in said


def test_in_a_compiled_step() -> None:
    trainer = tiny_trainer(build=build_of)
    with pytest.raises(OutOfMemoryError, match=r"step 1 failed in the model: OOM when allocating tensor with shape\["):
        trainer.train(max_steps=2)


def test_in_build() -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        return {"loss": big(inputs)}

    with pytest.raises(OutOfMemoryError, match=r"building the model: OOM when .*\(test_memory.py, line \d+\)"):
        tiny_trainer(build=build)
