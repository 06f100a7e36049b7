"""Numbers about tensors and variables, what is done to variables after a step, stat.json: one run of each kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import SyncReplicatedTrainer
from prototrain.callbacks import (
    ActivationSummary,
    AssignVariables,
    Callback,
    DumpParamAsImage,
    JSONWriter,
    MovingAverageSummary,
    ParamSummary,
    SaveOnExit,
    StatJSON,
    Summaries,
    TensorBoardWriter,
    TensorSummary,
)
from prototrain.errors import CallbackError
from tests.tiny import CountingTrainer, tiny_model, tiny_trainer


def test_numbers_about_tensors_and_variables(experiment: Path) -> None:
    trainer = tiny_trainer(
        experiment,
        model__weight_decay__l1=0.5,
        model__weight_decay__value=0.25,
        model__weight_decay__filter_regex="fc0",
    )
    kernel = trainer.variables["fc0/kernel"]
    start, bias = np.array(kernel), np.array(trainer.variables["fc0/bias"])
    callbacks = [
        TensorSummary(["x", "loss"], ["mean"]).every(steps=2),
        ActivationSummary("fc0").every(steps=2),
        ParamSummary(("fc0/.*", ["rms", "histogram"]), ("bn0/gamma", "mean")).every(steps=2),
        AssignVariables(lambda variable: tf.round(variable * 8) / 8, "fc0/kernel"),
        AssignVariables(lambda variable: None),
        DumpParamAsImage("fc0/kernel:0", scale=255).every(steps=2),
        DumpParamAsImage("fc0/bias", map_function=lambda value: np.tile(value, (1, 4, 1)), prefix="b").every(steps=2),
        MovingAverageSummary(pattern="loss.*", decay=0.5).every(steps=2),
        TensorBoardWriter(),
        JSONWriter(),
        Summaries().every(steps=1),
        StatJSON(),
    ]
    trainer.train(callbacks, max_steps=4, steps_per_epoch=2)
    monitors = trainer.monitors
    names = ("trn/x-mean", "trn/activation-summary/fc0-sparsity", "param-summary/fc0/kernel-rms")
    assert all([step for step, _ in monitors.history(name)] == [2, 4] for name in names)
    array = np.array(kernel)
    assert np.array_equal(array * 8, np.round(array * 8))
    assert monitors.latest("param-summary/fc0/kernel-rms") == pytest.approx(np.sqrt(np.mean(array**2)))
    pictures = sorted(path.name for path in (experiment / "analysis" / "images").iterdir())
    assert pictures == [f"{name}-step-000000000{step}-0.png" for name in ("b", "fc0-kernel") for step in (2, 4)]
    rows = json.loads((experiment / "stat.json").read_text())
    assert [(row["epoch_num"], row["global_step"]) for row in rows] == [(1, 1), (1, 2), (2, 3), (2, 4)]
    assert "trn/loss" in rows[0] and "time" not in rows[0]
    assert rows[0]["trn/loss_l1"] == pytest.approx(0.5 * (abs(start).sum() + abs(bias).sum()), rel=1e-5)
    assert rows[0]["trn/loss_l2"] == pytest.approx(0.125 * (np.square(start).sum() + np.square(bias).sum()), rel=1e-5)
    values = [row["trn/loss_total"] for row in rows]
    weights = [0.5**age for age in (3, 2, 1, 0)]
    average = sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)
    assert rows[-1]["trn/loss_total_average"] == pytest.approx(average)


@pytest.mark.parametrize("make", [CountingTrainer, tiny_trainer])
def test_averages_of_a_pattern_survive_a_resume_and_another_train(make: Any, tmp_path: Path) -> None:
    def run(name: str, *ends: int) -> Any:
        average = MovingAverageSummary(pattern=".*").every(steps=10)
        trainer = make(experiment=None if name == "c" else tmp_path / name)
        for end in ends:
            trainer.train([average, *([] if name == "c" else [SaveOnExit()])], max_steps=end)
        return trainer.monitors.latest("trn/loss_average")

    run("b", 3)
    whole = run("a", 6)
    assert run("b", 6) == whole
    assert make is tiny_trainer or run("c", 3, 6) == whole


def test_variables_of_several_towers_are_assigned() -> None:
    trainer = SyncReplicatedTrainer(tiny_model(), "cpu:2")
    clipped = AssignVariables(lambda variable: tf.clip_by_value(variable, -0.1, 0.1), "logits/kernel")
    trainer.train([clipped, MovingAverageSummary(pattern="loss").every(steps=2)], max_steps=2)
    for copy in trainer.variables["logits/kernel"].values:
        assert 0 < np.abs(copy.numpy()).max() <= np.float32(0.1)
    assert trainer.monitors.latest("trn/loss_average") > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TensorSummary("x", "median"), "TensorSummary: there is no 'median'; there are scalar, histogram"),
        (lambda: TensorSummary("x", []), "there is no 'nothing'"),
        (lambda: ParamSummary(".*"), "takes pairs such as"),
        (
            lambda: ParamSummary(("conv/.*", "rms")),
            "'conv/.*' is the whole name of no trained variable",
        ),
        (lambda: AssignVariables(lambda v: v, "("), "AssignVariables: '[(]' is not a regular expression"),
        (lambda: DumpParamAsImage("conv"), "there is no variable 'conv'; there are: fc0/kernel"),
        (lambda: StatJSON(), "add JSONWriter"),
        (lambda: MovingAverageSummary("loss", pattern="x"), "name the scalars, .* or give a pattern"),
        (lambda: MovingAverageSummary(pattern="["), "not a regular expression"),
    ],
)
def test_mistakes(make: Any, message: str, trainer: Any) -> None:
    with pytest.raises(CallbackError, match=message):
        callback: Callback = make()
        trainer.train([callback], max_steps=1)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny_trainer(tmp_path_factory.mktemp("mistakes"))
