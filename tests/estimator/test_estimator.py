"""Programs of `tf.estimator` train, resume, evaluate, predict and export."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import estimator
from prototrain.callbacks import CallbackFactory, GradientNorm
from prototrain.checkpoint.store import read_tensors
from prototrain.estimator import Estimator, EstimatorSpec, EvalSpec, ModeKeys, OptimizerSpec, RunConfig, TrainSpec
from tests.estimator.programs import POINTS, SIDES, classifier, endless, linear_fn, named, plain
from tests.tiny import PressesCtrlC, rows


def weights(directory: Any, step: int) -> dict[str, bytes]:
    """The bits of a checkpoint's variables."""
    found = read_tensors(Path(directory) / "checkpoints" / f"step-{step:010d}" / "model")
    return {name: value.numpy().tobytes() for name, value in found.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Estimator:
    return classifier(tmp_path_factory.mktemp("trained")).train(endless, steps=40)


def test_every_example_counts_once(trained: Estimator) -> None:
    predicted = list(trained.predict(partial(named, 7)))
    assert len(predicted) == 70 and set(predicted[0]) == {"class", "logits"}
    batch = next(trained.predict(partial(named, 7), predict_keys=["class"], yield_single_examples=False))
    assert set(batch) == {"class"} and batch["class"].shape == (7,)
    logits = np.stack([one["logits"] for one in predicted])
    classes = np.array([one["class"] for one in predicted])
    losses = keras.ops.convert_to_numpy(keras.losses.sparse_categorical_crossentropy(SIDES, logits, from_logits=True))

    whole = trained.evaluate(partial(named, 32))  # the last batch has 6
    assert whole["accuracy"] == pytest.approx(np.mean(classes == SIDES)) and whole["accuracy"] > 0.8
    assert whole["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert whole["mean"] == pytest.approx(np.mean(SIDES)) and whole["global_step"] == 40

    part = trained.evaluate(partial(named, 10), steps=3, name="part")
    assert part["accuracy"] == pytest.approx(np.mean((classes == SIDES)[:30]))
    charts = {path.parent.name for path in (Path(trained.model_dir) / "summaries").rglob("events*")}
    assert charts == {"summaries", "trn", "eval", "eval_part"}  # the one of the config takes precedence


def test_get_variable_value(trained: Estimator) -> None:
    names = trained.get_variable_names()
    assert {"global_step", "dense/kernel", "logits/bias", "optimizer/iteration"} <= set(names)
    assert not any(name.startswith(("accuracy", "adagrad")) for name in names)
    assert int(trained.get_variable_value("global_step")) == 40
    reader = tf.train.load_checkpoint(trained.latest_checkpoint())
    np.testing.assert_array_equal(reader.get_tensor("dense/kernel"), trained.get_variable_value("dense/kernel"))
    earlier = Path(trained.model_dir) / "checkpoints" / "step-0000000020"
    assert trained.evaluate(named, checkpoint_path=earlier)["global_step"] == 20


def test_export_equals_the_model(trained: Estimator, tmp_path: Path) -> None:
    spec = {name: tf.io.FixedLenFeature([], tf.float32) for name in "ab"}
    place = trained.export_saved_model(tmp_path, estimator.build_parsing_serving_input_receiver_fn(spec))
    assert Path(place).parent == tmp_path and Path(place).name.isdecimal()
    examples = []
    for a, b in POINTS[:3].tolist():
        values = {"a": a, "b": b}
        floats = {name: tf.train.Feature(float_list=tf.train.FloatList(value=[v])) for name, v in values.items()}
        examples.append(tf.train.Example(features=tf.train.Features(feature=floats)).SerializeToString())
    served = tf.saved_model.load(place).signatures["serving_default"](examples=tf.constant(examples))
    expected = [one["logits"] for one in islice(trained.predict(named), 3)]
    np.testing.assert_allclose(served["logits"], np.stack(expected), rtol=1e-5)


def test_resumed_run_is_exact(tmp_path: Path) -> None:
    """Several towers give the same metrics, including a metric of the `model_fn` that is updated while training."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    config = RunConfig(save_summary_steps=5, save_checkpoints_steps=20, train_distribute=strategy)
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    classifier(straight, config=config).train(endless, max_steps=20)
    with pytest.raises(KeyboardInterrupt):
        classifier(stopped, config=config).train(endless, max_steps=20, hooks=[PressesCtrlC(10)])
    assert [path.name for path in (stopped / "checkpoints").glob("step-*")] == ["step-0000000010"]
    classifier(stopped, config=config).train(endless, max_steps=20)
    assert "resumed at step 10; data: " in (stopped / "train.log").read_text()
    assert weights(stopped, 20) == weights(straight, 20)
    assert 0 <= rows(straight)[-1]["trn/accuracy"] <= 1 and rows(stopped) == rows(straight)


def test_lengths_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = Estimator(linear_fn, tmp_path, RunConfig(save_summary_steps=0, log_step_count_steps=None))
    assert line.config.model_dir == line.model_dir == str(tmp_path)
    for arguments, step in (({"steps": 2}, 2), ({"steps": 1}, 3), ({"max_steps": 5}, 5), ({"max_steps": 5}, 5)):
        line.train(lambda: plain().repeat(), hooks=None, **arguments)
        assert int(line.get_variable_value("global_step")) == step
    assert f"nothing to train: {tmp_path} is at step 5 of 5" in capsys.readouterr().out
    line.train(plain)  # until the data ends
    assert int(line.get_variable_value("global_step")) == 12
    assert line.evaluate(plain)["loss"] < 1
    (first, *_) = line.predict(lambda: plain().map(lambda features, labels: (features, labels, labels)))
    assert np.shape(first) == ()


def test_train_and_evaluate_is_one_run(tmp_path: Path) -> None:
    both = classifier(tmp_path)
    spec = EvalSpec(named, steps=None, name="all", start_delay_secs=0, throttle_secs=0)
    measured, exports = estimator.train_and_evaluate(both, TrainSpec(endless, max_steps=45), spec)
    assert exports == [] and measured == both.evaluate(named)
    assert [row["step"] for row in rows(tmp_path) if "eval_all/accuracy" in row] == [20, 40, 45]
    assert len(json.loads((tmp_path / "run.json").read_text())["parts"]) == 1
    again, _ = estimator.train_and_evaluate(both, TrainSpec(endless, max_steps=45), spec)
    assert again == measured


def test_optimizer_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def build(features: Any, labels: Any, mode: str, params: Any, config: RunConfig) -> EstimatorSpec:
        spec = linear_fn(features, labels, mode)
        processors = [lambda pairs: [(gradient * 0 + 1.0, variable) for gradient, variable in pairs]]
        how = OptimizerSpec(spec.train_op, lambda step: 0.5 / tf.cast(step + 1, tf.float32), 1.0, processors, "line/k")
        return EstimatorSpec(mode, loss=spec.loss, train_op=how)

    line = Estimator(build, tmp_path).train(lambda: plain().repeat(), steps=2)
    assert "optimizer      SGD, learning rate by step\n" in capsys.readouterr().out
    np.testing.assert_allclose(line.get_variable_value("line/kernel"), [[0.25], [0.25]])
    np.testing.assert_array_equal(line.get_variable_value("line/bias"), [0.0])


def test_layer_without_gradient_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def build(features: Any, labels: Any, mode: str, params: Any, config: RunConfig) -> EstimatorSpec:
        keras.layers.Dense(2, name="unused")(features)
        return linear_fn(features, labels, mode)

    Estimator(build, tmp_path).train(lambda: plain().repeat(), steps=2, hooks=[GradientNorm()])
    said = capsys.readouterr().out
    assert "the loss does not depend on unused/kernel, unused/bias" in said and "no effect" not in said


def test_learning_rate_after_weights_are_frozen(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        hidden = keras.layers.Dense(2, name="hidden")(features["a"][:, None])
        loss = tf.reduce_mean(keras.layers.Dense(1, name="out")(hidden) ** 2)
        how = OptimizerSpec(keras.optimizers.SGD(0.1), lambda step: 0.5 * tf.cast(step, tf.float32))
        return EstimatorSpec(mode, loss=loss, train_op=how)

    rates: list[float] = []
    look = CallbackFactory(trigger=lambda me: rates.append(float(me.trainer.optimizer.learning_rate)))
    Estimator(model_fn, tmp_path).train(lambda: named().repeat(), [look.every(steps=1)], steps=4)
    assert rates == [0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize("saves_every", [7, 3])
def test_early_end_is_evaluated_and_exported(saves_every: int, tmp_path: Path) -> None:
    """The data ends at step 7, without or with an evaluation at this step."""
    line = Estimator(linear_fn, tmp_path, RunConfig(save_checkpoints_steps=saves_every))
    receiver = estimator.ServingInputReceiver(lambda inputs: inputs["x"], {"x": tf.TensorSpec([None, 2], tf.float32)})
    final = estimator.FinalExporter("final", lambda: receiver)
    exporters = [final, estimator.LatestExporter("latest", lambda: receiver)]
    spec = EvalSpec(plain, steps=None, exporters=exporters, start_delay_secs=0)
    measured, exported = estimator.train_and_evaluate(line, TrainSpec(plain), spec)
    assert measured == line.evaluate(plain) and measured["global_step"] == 7
    assert all(exported) and len(list((tmp_path / "export" / "latest").iterdir())) == (1 if saves_every == 7 else 2)


def decaying(how: str) -> Callable[..., EstimatorSpec]:
    """A `model_fn` with a weight decay of 0.5 times the squares, written in one of the ways of TensorFlow 1."""
    v1 = tf.compat.v1

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        regularizer = keras.regularizers.L2(0.5) if "regularization" in how or how == "keras" else None
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", kernel_regularizer=regularizer)
        loss = tf.reduce_mean((layer(features)[:, 0] - tf.cast(labels, tf.float32)) ** 2)
        if how == "sum":
            variables = v1.trainable_variables()
            assert [v.name for v in v1.global_variables()] == [v.name for v in variables]
            loss += 0.5 * sum(tf.reduce_sum(v**2) for v in variables if "kernel" in v.name)
        elif how == "regularization_loss":
            loss += v1.losses.get_regularization_loss()
        return EstimatorSpec(mode, loss=loss, train_op=keras.optimizers.SGD(0.1))

    return model_fn


def test_tensorflow_1_regularization_losses(tmp_path: Path) -> None:
    found = {}
    for how in ("keras", "sum", "regularization_loss"):
        there = Estimator(decaying(how), tmp_path / how).train(plain, steps=2)
        found[how] = there.get_variable_value("dense/kernel").tolist()
    expected = np.ones(2, np.float64)
    for start in (0, 10):
        points, sides = POINTS[start : start + 10], SIDES[start : start + 10]
        expected -= 0.1 * (2 * (points @ expected - sides) @ points / 10 + expected)
    assert found == {how: pytest.approx(np.reshape(expected, (2, 1)), rel=1e-5) for how in found}


def test_train_metrics_use_recorded_steps_only(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        steps = keras.metrics.Sum(name="steps")
        steps.update_state(1.0)
        tf.summary.scalar("steps", steps.result())
        given = linear_fn(features, labels, mode)
        return given if mode == ModeKeys.TRAIN else replace(given, eval_metric_ops={"steps": steps})

    config = RunConfig(save_summary_steps=4, save_checkpoints_steps=20)
    for max_steps in (8, 12):  # the second call continues
        line = Estimator(model_fn, tmp_path, config).train(lambda: plain().repeat(), max_steps=max_steps)
    assert [(row["step"], row["trn/steps"]) for row in rows(tmp_path)] == [(4, 1.0), (8, 2.0), (12, 3.0)]
    assert line.evaluate(lambda: plain(10))["steps"] > 1  # each batch of an evaluation counts
