from __future__ import annotations

import pytest
import tensorflow as tf

from prototrain.system.tracebacks import cause, format_error, python_in_graph
from tests.tiny import tiny_trainer


def failing_datasets() -> dict[str, tf.data.Dataset]:
    raise RuntimeError("mine")


def test_only_user_frames_are_shown() -> None:
    with pytest.raises(RuntimeError) as caught:
        tiny_trainer(datasets=failing_datasets)
    outer = ValueError("outer")
    outer.__cause__ = caught.value
    text, with_cause = format_error(caught.value), format_error(outer)
    assert text.endswith("RuntimeError: mine\n") and "in failing_datasets" in text
    assert "prototrain" not in text.replace("/prototrain/tests", "")
    assert "direct cause" in with_cause and "datasets.py" not in with_cause


def test_python_code_in_a_graph_shows_its_frames() -> None:
    def generate() -> object:
        yield 1.0
        raise ValueError("bad row")

    dataset = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.float32))
    with pytest.raises(tf.errors.OpError) as caught:
        list(dataset)
    text = python_in_graph(caught.value)
    assert cause(caught.value) == "ValueError: bad row"
    assert text is not None
    assert [line.split(", in ")[1] for line in text.splitlines() if " File " in line] == ["generate"]
    assert text.endswith("ValueError: bad row\n")


def test_error_of_an_op() -> None:
    with pytest.raises(tf.errors.OpError) as caught:
        next(iter(tf.data.TextLineDataset("no/such/file")))
    assert python_in_graph(caught.value) is None
    assert cause(caught.value) == "no/such/file; No such file or directory"
    assert python_in_graph(None) is None
