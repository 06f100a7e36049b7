"""Pictures, histograms and texts for monitors, and warnings about code without effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event

from prototrain import Callback, ModelDict, SimpleTrainer
from prototrain.callbacks import Monitor, Summaries, TensorBoardWriter
from prototrain.callbacks.pictures import pictures
from prototrain.errors import CallbackError
from prototrain.optimizers import MapGradient, ScaleGradient, SummaryGradient
from tests.tiny import tiny_build, tiny_model


class Collects(Monitor):
    """Stores its input."""

    def __init__(self) -> None:
        self.got: list[tuple[str, int]] = []

    def put_scalar(self, name: str, value: float, step: int) -> None:
        self.got.append((name, step))

    def put_event(self, prefix: str, event: Event) -> None:
        self.got += [(f"{prefix}:{value.tag}", event.step) for value in event.summary.value]


class Tells(Callback):
    """Gives the monitors values that are no scalars, after an evaluation and a prediction of a model with summaries."""

    def trigger(self) -> None:
        self.trainer.evaluate("vld")
        self.trainer.get_predictor(["x"], ["logits"])(np.zeros([1, 4]))
        monitors = self.trainer.monitors
        monitors.put_image("image", np.zeros([3, 5]))
        monitors.put_histogram("vld/histogram", [[1.0, np.nan]])
        monitors.put_text("vld/deep/text", "**text**")


def build(inputs: dict[str, Any], train_phase: bool) -> ModelDict:
    net = tiny_build(inputs, train_phase)
    tf.summary.histogram("logits", net.logits)
    if train_phase:  # it only creates unused variables
        keras.layers.Dense(1, name="idle")(net.x)
    return net


def test_summaries_are_recorded_or_warned_about(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = SimpleTrainer(tiny_model(build=build), experiment=experiment)
    nothing = MapGradient(lambda gradient: None, "fc0")
    trainer.gradient_processors = [nothing, ScaleGradient([("logits/.*", 2.0)]), SummaryGradient("fc0/.*")]
    collects = Collects()
    told = Tells().every(steps=2)
    trainer.train([told, collects, TensorBoardWriter()], max_steps=4)
    names = [":image", "vld:histogram", "vld:deep/text"]
    assert sorted(collects.got) == sorted((name, step) for name in names for step in (2, 4))
    said = capsys.readouterr().out
    assert said.count("WARNING: MapGradient: 'fc0' matches no variable that has a gradient; it must match whole") == 1
    assert said.count("WARNING: the loss does not depend on idle/kernel, idle/bias: not trained") == 1
    assert said.count("WARNING: the step calls tf.summary, but no callback records it; add Summaries()") == 1
    collects.got = []
    trainer.train([Summaries().every(steps=2), collects], max_steps=6, resume=False)
    assert ("trn:fc0/kernel-grad", 6) in collects.got and ("trn/fc0/bias-grad/rms", 6) in collects.got
    assert ("trn:logits", 6) in collects.got and "WARNING" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shape", "expected"),
    [([2, 3], [1, 2, 3, 1]), ([2, 3, 4], [1, 2, 3, 4]), ([2, 3, 5], [2, 3, 5, 1]), ([2, 3, 5, 1], [2, 3, 5, 1])],
)
def test_shapes_of_pictures(shape: list[int], expected: list[int]) -> None:
    assert list(pictures("x", np.full(shape, 300.0)).shape) == expected
    with pytest.raises(CallbackError, match=r"'x' must have shape .* got \[1, 2, 3, 5\]"):
        pictures("x", np.zeros([1, 2, 3, 5]))
