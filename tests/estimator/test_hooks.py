from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain.errors import CallbackError
from prototrain.estimator import Estimator, EstimatorSpec, LoggingTensorHook, SessionRunArgs, SessionRunHook
from prototrain.estimator.hooks import as_callbacks
from tests.estimator.programs import linear_fn, plain
from tests.tiny import CountingTrainer, Recorder, rows

Calls = list[tuple[str, Any]]


class Noting(SessionRunHook):
    """Records its calls, and requests some scalars."""

    def __init__(self, calls: Calls, fetches: Any = ("loss", {"step": "global_step:0"})) -> None:
        self.calls, self.fetches = calls, fetches

    def begin(self) -> None:
        self.calls.append(("begin", None))

    def before_run(self, run_context: Any) -> SessionRunArgs:
        self.calls.append(("before_run", run_context.stop_requested))
        return SessionRunArgs(self.fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.calls.append(("after_run", run_values.results))
        if len(self.calls) == 5:
            run_context.request_stop()

    def end(self, session: Any) -> None:
        self.calls.append(("end", None))


def test_hook_is_called_around_each_step() -> None:
    calls: Calls = []
    trainer = CountingTrainer()
    trainer.train(as_callbacks([Noting(calls)]), max_steps=9)
    steps = [("before_run", False), ("after_run", (1.0, {"step": 1})), ("before_run", False)]
    assert calls == [("begin", None), *steps, ("after_run", (0.5, {"step": 2})), ("end", None)]
    assert trainer.global_step == 2


def test_hook_without_base_class() -> None:
    class Around:
        began = ended = 0

        def begin(self) -> None:
            self.began += 1

        def end(self, session: Any) -> None:
            self.ended += 1

    around, recorder = Around(), Recorder()
    (found,) = as_callbacks([around])
    assert found.next_step(3) is None and as_callbacks([recorder]) == [recorder] and as_callbacks(None) == []
    CountingTrainer().train([found], max_steps=2)
    assert (around.began, around.ended) == (1, 1)


def test_hook_end_is_not_called_after_a_failure() -> None:
    calls: Calls = []
    with pytest.raises(CallbackError, match=r"Noting.before_run asks for 'los', .* choose from loss, global_step"):
        CountingTrainer().train(as_callbacks([Noting(calls, "los")]), max_steps=9)
    assert [name for name, _ in calls] == ["begin", "before_run"]


def test_hooks_of_tensorflow_and_keras_are_refused() -> None:
    for hook in (tf.compat.v1.train.StopAtStepHook(num_steps=1), keras.callbacks.TerminateOnNaN()):
        with pytest.raises(CallbackError, match=r"hooks need a session; take a callback, or KerasCallback"):
            as_callbacks([hook])


def test_logging_hook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        spec = linear_fn(features, labels, mode)
        spec.predictions = {"value": spec.predictions, "mean": tf.reduce_mean(spec.predictions)}
        tf.nn.softmax([[spec.loss, spec.loss]], name="softmax_tensor")
        spec.training_hooks = [LoggingTensorHook({"number": tf.constant([7.0])}, every_n_iter=2)]
        return spec

    names = {"first": "value", "cost": "loss:0", "chance": "softmax_tensor"}
    line = Estimator(model_fn, tmp_path)
    line.train(plain, steps=2, hooks=[LoggingTensorHook(names, every_n_iter=2)])
    said = capsys.readouterr().out
    assert "first = [" in said and ", cost = " in said and "number = [7.]" in said and "chance = [[0.5" in said
    assert "trn/loss" in rows(tmp_path)[-1] and "trn/mean" not in rows(tmp_path)[-1]
