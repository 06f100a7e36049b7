"""Callbacks for tensors of a step and variables: functions, files, pictures, numbers and moving averages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import ModelDict
from prototrain.callbacks import (
    DumpTensorAsImage,
    DumpTensors,
    JSONWriter,
    MovingAverageSummary,
    ProcessTensors,
    SaveOnExit,
    StopOnNaN,
    Summaries,
    TensorBoardWriter,
)
from tests.tiny import CountingTrainer, Losses, rows, tiny_build, tiny_trainer, values


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


def test_tensors_belong_to_the_requested_step() -> None:
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


def test_outputs_of_a_python_trainer() -> None:
    in_python = Seen("loss")
    CountingTrainer().train([in_python.every(steps=2)], max_steps=4)
    assert {step: float(loss) for step, (loss,) in in_python.by_step.items()} == {2: 0.5, 4: 0.25}


def test_files_and_numbers(experiment: Path) -> None:
    config = {"l1": 0.5, "value": 0.25, "filter_regex": "fc0"}
    trainer = tiny_trainer(experiment, build=build, **{f"model__weight_decay__{key}": v for key, v in config.items()})
    start, bias = (np.array(trainer.variables[f"fc0/{name}"]) for name in ("kernel", "bias"))
    seen = Seen("image")
    periodic = [
        seen,
        DumpTensors(["x", "loss"]),
        DumpTensorAsImage("image", scale=255),
        DumpTensorAsImage("fc0", map_function=lambda value: np.tile(value[0], (4, 1)), prefix="b"),
        MovingAverageSummary("loss.*", decay=0.5),
    ]
    callbacks = [
        *(callback.every(steps=2) for callback in periodic),
        *(TensorBoardWriter(), JSONWriter(), Summaries().every(steps=1)),
    ]
    trainer.train(callbacks, max_steps=4, steps_per_epoch=2)
    files = sorted((experiment / "analysis" / "tensors").iterdir())
    assert [file.name for file in files] == ["step-0000000002.npz", "step-0000000004.npz"]
    with np.load(files[1]) as arrays:
        assert arrays["x"].shape == (8, 4) and float(arrays["loss"]) == pytest.approx(trainer.outputs["loss"])
    pictures = sorted((experiment / "analysis" / "images").iterdir())
    names = [("b", 1), ("image", 4)]
    assert [path.name for path in pictures] == [
        f"{name}-step-000000000{step}-{i}.png" for name, number in names for step in (2, 4) for i in range(number)
    ]
    pixels = tf.io.decode_png(pictures[-1].read_bytes()).numpy()[..., 0]
    assert np.array_equal(pixels, np.rint(seen.by_step[4][0][3].astype(np.float64) * 255))

    found = rows(experiment)
    assert [row["step"] for row in found] == [1, 2, 3, 4]
    assert found[0]["trn/loss_l1"] == pytest.approx(0.5 * (abs(start).sum() + abs(bias).sum()), rel=1e-5)
    assert found[0]["trn/loss_l2"] == pytest.approx(0.125 * (np.square(start).sum() + np.square(bias).sum()), rel=1e-5)
    average = moving_average([row["trn/loss_total"] for row in found], 0.5)
    assert found[-1]["trn/loss_total_average"] == pytest.approx(average)


def moving_average(losses: list[float], decay: float) -> float:
    weights = [decay**age for age in range(len(losses))]
    return sum(w * x for w, x in zip(weights, reversed(losses), strict=True)) / sum(weights)


def test_averages_over_all_steps_across_resumes(tmp_path: Path) -> None:
    def run(experiment: Path | None, *ends: int) -> Any:
        average, losses = MovingAverageSummary(".*").every(steps=10), Losses()
        trainer = tiny_trainer(experiment)
        for end in ends:
            trainer.train([average, losses, *([] if experiment is None else [SaveOnExit()])], max_steps=end)
        return trainer.monitors.latest("trn/loss_average"), list(losses.by_step.values())

    run(tmp_path, 3)
    resumed, _ = run(tmp_path, 6)
    twice, losses = run(None, 3, 6)
    assert resumed == twice == pytest.approx(moving_average(losses, 0.95))
