from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import Callback, ModelDict
from prototrain.callbacks import DumpTensorAsImage, DumpTensors, ProcessTensors, StopOnNaN
from prototrain.errors import CallbackError, StopTraining
from tests.tiny import CountingTrainer, tiny_build, tiny_trainer, values


def build(inputs: dict[str, tf.Tensor], train_phase: bool) -> ModelDict:
    net = tiny_build(inputs, train_phase)
    net["image"] = tf.reshape(tf.nn.sigmoid(net["x"]), [-1, 2, 2])
    return net


class Seen(ProcessTensors):
    def __init__(self, names: Any = ("x", "loss", "fc0")) -> None:
        super().__init__(names)
        self.by_step: dict[int, tuple[Any, ...]] = {}

    def process(self, *arrays: Any) -> None:
        self.by_step[self.trainer.global_step] = arrays


def test_the_tensors_are_those_of_that_very_step() -> None:
    rare, often = Seen(), Seen()
    trainers = [tiny_trainer() for _ in range(3)]
    trainers[0].train([rare.every(steps=4), StopOnNaN()], max_steps=10)
    trainers[1].train([often.every(steps=1)], max_steps=10)
    trainers[2].train([], max_steps=10)
    assert list(rare.by_step) == [4, 8, 10] and list(often.by_step) == list(range(1, 11))
    for step, arrays in rare.by_step.items():
        assert [array.shape for array in arrays] == [(8, 4), (), (8, 6)]
        assert all(np.array_equal(a, b) for a, b in zip(arrays, often.by_step[step], strict=True))
    assert rare.by_step[10][1] == pytest.approx(trainers[0].outputs["loss"])
    assert values(trainers[0]) == values(trainers[1]) == values(trainers[2])


class StopAt(Callback):
    def next_step(self, step: int) -> int | None:
        return 5 if step < 5 else None

    def trigger_step(self) -> None:
        raise StopTraining("enough")


def test_a_run_that_ends_early_and_whose_steps_are_made_in_parts() -> None:
    seen = Seen()
    tiny_trainer(model__accumulate_steps=2).train([seen.every(steps=4), StopAt()], max_steps=10)
    assert list(seen.by_step) == [4]
    assert [array.shape for array in seen.by_step[4]] == [(8, 4), (), (8, 6)]


def test_a_trainer_in_plain_python() -> None:
    seen = Seen("loss")
    CountingTrainer().train([seen.every(steps=2)], max_steps=4)
    assert {step: float(loss) for step, (loss,) in seen.by_step.items()} == {2: 0.5, 4: 0.25}


def test_files_of_arrays(experiment: Path) -> None:
    trainer = tiny_trainer(experiment)
    trainer.train([DumpTensors(["x", "loss"]).every(steps=3)], max_steps=6)
    files = sorted((experiment / "analysis" / "tensors").iterdir())
    assert [file.name for file in files] == ["step-0000000003.npz", "step-0000000006.npz"]
    with np.load(files[1]) as arrays:
        assert arrays["x"].shape == (8, 4)
        assert float(arrays["loss"]) == pytest.approx(trainer.outputs["loss"])


def test_pictures(experiment: Path) -> None:
    trainer = tiny_trainer(experiment, build=build)
    seen = Seen("image")
    callback = DumpTensorAsImage("image", scale=255, max_images=2)
    trainer.train([callback.every(steps=4), seen.every(steps=4)], max_steps=4)
    files = sorted((experiment / "analysis" / "images").iterdir())
    assert [file.name for file in files] == ["image-step-0000000004-0.png", "image-step-0000000004-1.png"]
    pixels = tf.io.decode_png(files[1].read_bytes()).numpy()[..., 0]
    assert np.array_equal(pixels, np.rint(seen.by_step[4][0][1].astype(np.float64) * 255))


def test_not_a_picture(experiment: Path) -> None:
    with pytest.raises(CallbackError, match=r"'loss' must have shape .* got \[\]"):
        tiny_trainer(experiment).train([DumpTensorAsImage("loss").every(steps=1)], max_steps=1)
