from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.callbacks import CallbackFactory
from prototrain.errors import ModelError
from tests.tiny import tiny_arrays, tiny_trainer


def test_it_follows_the_training() -> None:
    trainer = tiny_trainer()
    predict = trainer.get_predictor(["x"], ["logits", "fc0"])
    x = tiny_arrays(3)["x"]
    seen: list[Any] = []
    trainer.train([CallbackFactory(trigger=lambda self: seen.append(predict(x)[0])).every(steps=2)], max_steps=4)
    logits, hidden = predict(x)
    assert logits.shape == (3, 2) and hidden.shape == (3, 6)
    assert not np.array_equal(seen[0], logits) and np.array_equal(seen[1], logits)


@pytest.mark.parametrize("convert", [np.asarray, tf.constant, lambda x: x.astype(np.float64), np.ndarray.tolist])
def test_arrays_tensors_and_lists(convert: Any) -> None:
    trainer = tiny_trainer()
    x = tiny_arrays(5)["x"]
    (logits,) = trainer.get_predictor(["x"], ["logits"])(convert(x))
    assert np.array_equal(logits, trainer.build({"x": tf.constant(x)}, False)["logits"])


def test_batches_of_any_size_share_few_traces() -> None:
    predict = tiny_trainer().get_predictor(["x"], ["logits"])
    for size in range(1, 6):
        assert predict(np.ones([size, 4]))[0].shape == (size, 2)
    assert predict._call.experimental_get_tracing_count() <= 2


@pytest.mark.parametrize(
    ("inputs", "outputs", "given", "message"),
    [
        (["z"], ["logits"], [], "no input 'z'; a training batch has: x, y"),
        (["x"], ["what"], [np.ones([2, 4])], "no output 'what'; it has: x, fc0"),
        (["x"], ["logits"], [np.ones([2, 4]), 1], r"takes 1 inputs \(x\), got 2"),
        (["x"], ["logits"], [np.ones([2, 5])], r"input 'x' must have shape \(None, 4\), got \(2, 5\)"),
        (["x"], ["logits"], [np.ones([4])], r"input 'x' must have shape \(None, 4\), got \(4,\)"),
        ("x", ["logits"], [], "input_names must be a list of names"),
    ],
)
def test_mistakes(inputs: Any, outputs: Any, given: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        tiny_trainer().get_predictor(inputs, outputs)(*given)
