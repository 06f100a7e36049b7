from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event

from prototrain import ModelDict, SimpleTrainer
from prototrain.callbacks import (
    GradientNorm,
    JSONWriter,
    MovingAverageSummary,
    SaveOnExit,
    StopOnNaN,
    Summaries,
    TensorBoardWriter,
)
from tests.tiny import CountingTrainer, PressesCtrlC, Records, rows, tiny_build, tiny_model, tiny_trainer, values


def build(inputs: dict[str, tf.Tensor], train_phase: bool) -> ModelDict:
    net = tiny_build(inputs, train_phase)
    if train_phase:
        tf.summary.histogram("hidden", net.fc0)
        tf.summary.image("picture", tf.reshape(net.x, [-1, 2, 2, 1]), max_outputs=1)
        tf.summary.text("words", tf.strings.as_string(net.logits[0]))
        tf.summary.audio("sound", tf.clip_by_value(net.x[:1, :, None], -1.0, 1.0), 8)
        tf.summary.scalar("largest", tf.reduce_max(net.x))
    return net


def recorded(experiment: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for path in sorted((experiment / "summaries" / "trn").iterdir()):
        for record in tf.data.TFRecordDataset(str(path)):
            event = Event.FromString(record.numpy())
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(event.step)
    return found


def test_resumed_run_equals_a_run_without_summaries(experiment: Path) -> None:
    whole = tiny_trainer(build=build, model__accumulate_steps=2)
    whole.train([], max_steps=10)
    for max_steps in (7, 10):
        trainer = tiny_trainer(experiment, build=build, model__accumulate_steps=2)
        callbacks = [Summaries().every(steps=4), TensorBoardWriter(), SaveOnExit(), StopOnNaN()]
        trainer.train(callbacks, max_steps=max_steps, steps_per_epoch=5)
    assert values(trainer) == values(whole)
    found = recorded(experiment)
    for tag in ("hidden", "picture", "words", "sound", "largest", "loss"):
        assert found[tag] == [4, 7, 8, 10]
    assert [step for step, _ in trainer.monitors.history("trn/largest")] == [4, 7, 8, 10]
    # Without the callback, the graph has no op for them.
    library = whole.calls.graph.as_graph_def().library
    assert not {node.op for function in library.function for node in function.node_def if "Summary" in node.op}


class Gaps(CountingTrainer):
    """Returns a scalar in some steps only, and one that is always NaN."""

    def run_step(self) -> dict[str, float]:
        step = self.global_step + 1
        rare = {"rare": float(step)} if step % 3 == 0 else {}
        return {**rare, "odd": math.nan if step % 2 else float(step), "never": math.nan, "learning_rate": float(step)}


def test_missing_values_are_not_averaged(experiment: Path) -> None:
    for stop in (7, 0):  # the second part begins within an interval
        trainer = Gaps(experiment=experiment)
        with pytest.raises(KeyboardInterrupt) if stop else nullcontext():
            callbacks = [Summaries().every(steps=6), PressesCtrlC(stop), JSONWriter(), SaveOnExit()]
            trainer.train(callbacks, max_steps=12)
    means = {name: trainer.monitors.history(f"trn/{name}") for name in ("rare", "odd", "learning_rate")}
    assert means["rare"] == [(6, 4.5), (12, 10.5)] and means["odd"] == [(6, 4.0), (12, 10.0)]
    assert means["learning_rate"] == [(6, 6.0), (12, 12.0)]
    assert all(math.isnan(value) for _, value in trainer.monitors.history("trn/never"))


def sometimes(inputs: dict[str, tf.Tensor], train_phase: bool) -> ModelDict:
    net = tiny_build(inputs, train_phase)
    if train_phase:
        net.positive = tf.where(net.loss > 0.7, net.loss, tf.constant(math.nan))
        net.twice = tf.cast(net.loss, tf.float64) * 2.0
    return net


def test_means_do_not_depend_on_call_lengths(tmp_path: Path) -> None:
    def trainer(name: str) -> Any:
        return tiny_trainer(tmp_path / name, build=sometimes)

    each = Records(lambda trainer: dict(trainer.outputs))
    trainer("single").train([each, Summaries().every(steps=5), JSONWriter()], max_steps=20)
    trainer("long").train([Summaries().every(steps=5), JSONWriter(), StopOnNaN()], max_steps=20)
    for stop in (3, 0):  # within an interval
        callbacks = [Summaries().every(steps=5), PressesCtrlC(stop), JSONWriter(), SaveOnExit()]
        with pytest.raises(KeyboardInterrupt) if stop else nullcontext():
            trainer("parts").train(callbacks, max_steps=20)
    long, single, parts = (rows(tmp_path / name) for name in ("long", "single", "parts"))
    assert long == single == parts
    for row in long:
        steps = [each.by_step[step] for step in range(row["step"] - 4, row["step"] + 1)]
        for name in ("loss", "positive", "twice"):
            values = [one[name] for one in steps if not math.isnan(one[name])]
            assert row[f"trn/{name}"] == (pytest.approx(fmean(values), rel=1e-12) if values else None)


def test_restored_state_is_the_same_text() -> None:
    first, second = Summaries(), Summaries()
    first.after_steps({"loss": [1, 2.5], "rare": [math.nan]})
    text = json.dumps(first.state_dict())  # `prototrain verify` compares it
    second.load_state_dict(json.loads(text))
    assert json.dumps(second.state_dict()) == text


def test_moving_average_leaves_out_nan() -> None:
    average = MovingAverageSummary("loss", decay=0.5)
    average.after_steps({"loss": [4.0, math.nan, 1.0]})
    (total, weight), *_ = average.state_dict()["sums"].values()
    assert total / weight == pytest.approx((0.25 * 4 + 0.5 * 1) / 0.75)


def test_second_run_continues_the_average(experiment: Path) -> None:
    def average(*ends: int, where: Path | None = None) -> float:
        trainer = CountingTrainer(experiment=where)
        for end in ends:
            trainer.train([MovingAverageSummary("loss").every(steps=9)], max_steps=end)
        return trainer.monitors.latest("trn/loss_average")

    assert average(4) == average(2, 4, where=experiment) != average(2, 4)  # without a directory, it begins anew


def test_gradient_norm_is_before_the_processors() -> None:
    config = {"model__optimizer__method": "sgd", "model__lr_schedule__constant__value": 1.0}
    trainer, clipped = tiny_trainer(**config), tiny_trainer(**config, model__clip_gradients__global_norm=0.01)
    before = {name: v.numpy() for name, v in trainer.trainable.items()}
    trainer.train([GradientNorm(), StopOnNaN()], max_steps=1)
    step = sum(np.sum((v.numpy() - before[name]) ** 2) for name, v in trainer.trainable.items())
    clipped.train([GradientNorm()], max_steps=1)
    norms = [one.outputs["gradient_norm"] for one in (trainer, clipped)]
    assert norms[0] == norms[1] == pytest.approx(np.sqrt(step), rel=1e-4) and norms[0] > 0.01
    trainer.train([], max_steps=2)
    assert "gradient_norm" not in trainer.outputs


def test_gradient_norm_of_a_python_step(capsys: pytest.CaptureFixture[str]) -> None:
    class Python(SimpleTrainer):
        def run_step(self) -> Any:
            return super().run_step()

    trainer = Python(tiny_model())
    trainer.train([GradientNorm()], max_steps=2)
    assert trainer.outputs["gradient_norm"] > 0 and "no effect" not in capsys.readouterr().out
