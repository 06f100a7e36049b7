"""The action `evaluate`: a trained model on a whole dataset."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.actions import evaluate
from prototrain.callbacks import SaveOnExit
from prototrain.errors import DataError, ModelError, PrototrainError
from prototrain.trainers.tower import SimpleTrainer
from tests.actions.conftest import model_in
from tests.tiny import tiny_arrays, tiny_build, tiny_datasets, tiny_trainer


def run(base: Path, dataset: str | None = None, *, checkpoint: str | None = None, **model: Any) -> None:
    evaluate.run(model_in(base, **model), Namespace(checkpoint=checkpoint, dataset=dataset, files=None))


def found(base: Path, step: int = 20) -> Any:
    return json.loads((base / "tiny/analysis" / f"step-{step:010d}-evaluate.json").read_text())


def test_result_equals_validation(trained: SimpleTrainer, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(base)
    printed = capsys.readouterr().out
    assert "moving averages" in printed and "vld, 20 examples" in printed
    assert f"written to {base}/tiny/analysis/step-0000000020-evaluate.json" in printed
    outcome = found(base)["datasets"]["vld"]
    assert outcome["scalars"] == {name: trained.monitors.latest(f"vld/{name}") for name in ("loss", "accuracy")}
    assert outcome["examples"] == 20 and outcome["weights"] == "moving averages"
    run(base, "trn", checkpoint="15")
    run(base, "vld", checkpoint="15")
    assert {name: part["examples"] for name, part in found(base, 15)["datasets"].items()} == {"trn": 40, "vld": 20}
    assert found(base, 15)["step"] == 15


def test_every_example_counts_once(trained: SimpleTrainer, base: Path, tmp_path: Path) -> None:
    """The mean over batches of 7, 7 and 6 examples equals that of one batch of 20."""

    def build(inputs: Any, train_phase: bool) -> Any:
        weight = tf.Variable(1.0, name="weight")
        x = inputs["x"] * (weight if train_phase else 1.0)
        return {"mean": tf.reduce_mean(x), "nan": x[0, 0] * np.nan, "count": tf.shape(x)[0], "loss": tf.reduce_sum(x)}

    tiny_trainer(tmp_path / "tiny", build=build).train([SaveOnExit()], max_steps=1)
    run(tmp_path, "vld", build=build, datasets=lambda: tiny_datasets(7))
    scalars = found(tmp_path, 1)["datasets"]["vld"]["scalars"]
    assert scalars["mean"] == pytest.approx(tiny_arrays(20)["x"].mean(), rel=1e-6)
    assert scalars["count"] == pytest.approx((7 * 7 + 7 * 7 + 6 * 6) / 20) and scalars["nan"] is None


def no_scalars(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    return net if train_phase else {"logits": net.logits}


def endless() -> dict[str, tf.data.Dataset]:
    return {"trn": tiny_datasets()["trn"].repeat()}


@pytest.mark.parametrize(
    ("dataset", "model", "error", "words"),
    [
        ("tst", {}, DataError, "datasets() gives no 'tst'; name one of trn, vld with --dataset"),
        ("trn", {"datasets": endless}, DataError, "dataset 'trn' has no end, so the whole of it cannot be evaluated"),
        ("vld", {"build": no_scalars}, ModelError, "build() returned no scalars without training"),
    ],
)
def test_errors(
    dataset: str, model: dict[str, Any], error: type[PrototrainError], words: str, trained: SimpleTrainer, base: Path
) -> None:
    with pytest.raises(error) as caught:
        run(base, dataset, **model)
    assert words in str(caught.value)
