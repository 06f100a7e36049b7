from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.callbacks import CallbackFactory
from prototrain.errors import DataError, ModelError
from prototrain.predictor import AsyncPredictor, DatasetPredictor, Predictor
from prototrain.trainers.tower import SimpleTrainer
from tests.tiny import tiny_arrays, tiny_build, tiny_trainer


@pytest.fixture(scope="module")
def trainer() -> SimpleTrainer:
    """The predictor of a tiny model that also takes a state, noise, and tuples."""

    def build(inputs: Any, train_phase: bool) -> Any:
        net = tiny_build(inputs if "x" in inputs else {"x": inputs["z"]}, train_phase)
        net.state = net.fc0 + inputs["state"] if "state" in inputs else net.fc0
        net.pair = tuple(value + 1 for value in inputs["pair"]) if "pair" in inputs else ()
        return net

    return tiny_trainer(build=build)


def test_predictor_uses_current_weights() -> None:
    trainer = tiny_trainer()
    predict = trainer.get_predictor(["x"], ["logits", "fc0"])
    x = tiny_arrays(3)["x"]
    seen: list[Any] = []
    trainer.train([CallbackFactory(trigger=lambda self: seen.append(predict(x)[0])).every(steps=2)], max_steps=4)
    logits, hidden = predict(x)
    assert logits.shape == (3, 2) and hidden.shape == (3, 6)
    assert not np.array_equal(seen[0], logits) and np.array_equal(seen[1], logits)


@pytest.mark.parametrize("convert", [np.asarray, tf.constant, lambda x: x.astype(np.float64), np.ndarray.tolist])
def test_arrays_tensors_and_lists(trainer: SimpleTrainer, convert: Any) -> None:
    x = tiny_arrays(5)["x"]
    (logits,) = trainer.get_predictor(["x"], ["logits"])(convert(x))
    assert np.array_equal(logits, trainer.build({"x": tf.constant(x)}, False)["logits"])


@pytest.mark.parametrize(
    ("shapes", "needs_sizes", "most"),
    [
        ([(size, 4) for size in range(1, 9)], False, 2),
        ([(2, size) for size in (1, 2, 3, 1, 2, 3)], True, 6),  # one fails, and two shapes are traced twice
    ],
)
def test_shapes_share_a_trace(shapes: list[tuple[int, int]], needs_sizes: bool, most: int) -> None:
    traced = []

    def build(inputs: Any, train_phase: bool) -> Any:
        traced.append(inputs["x"].shape)
        steps = tf.unstack(inputs["x"], axis=1) if needs_sizes else inputs["x"]
        return {"sum": tf.reduce_sum(steps)}

    predict = Predictor(SimpleNamespace(element_spec=None, build=build), ["x"], ["sum"])
    assert [int(predict(np.ones(shape))[0]) for shape in shapes] == [rows * columns for rows, columns in shapes]
    assert len(traced) <= most


def test_other_inputs(trainer: SimpleTrainer) -> None:
    x = tiny_arrays(3)["x"]
    (hidden,) = trainer.get_predictor(["x"], ["fc0"])(x)
    on, state = trainer.get_predictor(["x", "state"], ["state", "logits"]), np.full([3, 6], 0.5)  # float64
    first, _ = on(x, state)
    assert np.array_equal(first, hidden + np.float32(0.5)) and np.array_equal(on(x, first)[0], hidden + first)
    assert np.array_equal(trainer.get_predictor(["z"], ["fc0"])(x)[0], hidden)
    ((one, two),) = trainer.get_predictor(["x", "pair"], ["pair"])(x, (1, [2.5]))
    assert one == 2 and two.tolist() == [3.5]


@pytest.mark.parametrize(
    ("inputs", "outputs", "given", "message"),
    [
        (["x", "stat"], ["logits"], [np.ones([2, 4]), 1.0], "does not use the input 'stat'"),
        (["x"], ["logits"], [np.ones([2, 5])], r"cannot handle 'x' of shape \(2, 5\)"),
        (["x", "state"], ["state"], [np.ones([2, 4]), np.ones([3, 6])], r"cannot handle .*'state' of shape \(3, 6\)"),
        (["x", "y"], ["logits"], [np.ones([2, 4]), [0.0, 0.7]], "'y' has the value 0.7, which int32 cannot hold"),
        (["x", "y"], ["logits"], [np.ones([2, 4]), tf.constant([0, 1.5])], "'y' has the value 1.5"),
        (["x", "y"], ["logits"], [np.ones([2, 4]), [0, 2**32]], "'y' has the value 4294967296"),
        (["x", "y"], ["logits"], [np.ones([2, 4]), tf.constant([0, 2**32])], "'y' has the value 4294967296"),
        (["x", "y"], ["logits"], [np.ones([2, 4]), ["a", "b"]], "'y' is string, not int32"),
        (["x"], ["logits"], [None], "'x' is string, not float32"),
    ],
)
def test_mistakes(trainer: SimpleTrainer, inputs: Any, outputs: Any, given: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        trainer.get_predictor(inputs, outputs)(*given)


def test_requests_are_batched() -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    sizes: list[int] = []

    def double(x: Any, y: Any) -> list[Any]:
        sizes.append(len(x))
        begun.set()
        may_go_on.wait(10)
        return [2 * x, (y, {"sum": x.sum(1) + y})]

    with AsyncPredictor(double, batch_size=4) as predict:
        first = predict.submit([1.0, 2.0], 3)
        assert begun.wait(10)
        futures = [predict.submit([index, 0.0], index) for index in range(9)]
        dropped = predict.submit([0.0, 0.0], 0)
        assert dropped.cancel()
        odd = predict.submit([1.0, 2.0, 3.0], 0)  # of another shape
        may_go_on.set()
        assert predict([5.0, 6.0], 1)[0].tolist() == [10.0, 12.0]
        twice, (y, parts) = first.result(10)
        assert twice.tolist() == [2.0, 4.0] and y == 3 and parts["sum"] == 6.0
        assert [future.result(10)[1][0] for future in futures] == list(range(9))
        assert odd.result(10)[0].shape == (3,)
        last = predict.submit([0.0, 1.0], 1)
    assert last.done() and max(sizes) == 4 and sizes[:3] == [1, 4, 4]
    assert not predict._thread.is_alive()
    with pytest.raises(ModelError, match="is closed"):
        predict.submit([0.0], 0)
    predict.close()


def test_errors_reach_the_caller_only() -> None:
    def fail(x: Any) -> list[Any]:
        if x.max() > 1:
            raise ZeroDivisionError("too large")
        return [x if x.max() else x[0, 0]]

    with AsyncPredictor(fail) as predict:
        with pytest.raises(ZeroDivisionError, match="too large"):
            predict([2.0])
        with pytest.raises(ModelError, match=r"has shape \(\); it must have a row for each"):
            predict([0.0])
        assert predict([1.0]) == [1.0]
        with pytest.raises(ModelError, match="at least 1"):
            AsyncPredictor(fail, batch_size=0)


def test_predict_dataset(trainer: SimpleTrainer) -> None:
    predict = trainer.get_predictor(["x"], ["logits", "fc0"])
    x = tiny_arrays(20)["x"]
    logits, hidden = DatasetPredictor(predict, trainer.datasets["vld"]).predict_all()
    assert np.allclose(logits, predict(x)[0], atol=1e-6) and hidden.shape == (20, 6)
    assert [len(logits) for logits, _ in DatasetPredictor(predict, [{"x": x[:3]}, (x[3:],)], bar=False)] == [3, 17]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (tf.data.Dataset.from_tensors({"x": np.ones([2, 4], np.float32)}).repeat(), "has no end; leave out its repeat"),
        ([{"y": 1}], "a batch has no 'x'; it has: y"),
    ],
)
def test_wrong_datasets(trainer: SimpleTrainer, dataset: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        DatasetPredictor(trainer.get_predictor(["x"], ["logits"]), dataset).predict_all()
