from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from prototrain.actions import evaluate
from prototrain.errors import DataError, ModelError, PrototrainError
from prototrain.trainers.tower import SimpleTrainer
from tests.actions.conftest import model_in
from tests.tiny import tiny_build, tiny_datasets


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
    run(base, "trn", checkpoint="15", build=with_nan)
    run(base, "vld", checkpoint="15")
    assert found(base, 15)["datasets"]["trn"]["scalars"]["nan"] is None
    assert {name: part["examples"] for name, part in found(base, 15)["datasets"].items()} == {"trn": 40, "vld": 20}
    assert found(base, 15)["step"] == 15


def with_nan(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    net.nan = net.loss * float("nan")
    return net


def no_scalars(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    return net if train_phase else {"logits": net.logits}


def endless() -> dict[str, tf.data.Dataset]:
    return {"trn": tiny_datasets()["trn"].repeat()}


@pytest.mark.parametrize(
    ("dataset", "model", "error", "words"),
    [
        ("tst", {}, DataError, "datasets() gives no 'tst'; name one of trn, vld with --dataset"),
        ("trn", {"datasets": endless}, DataError, "dataset 'trn' is infinite"),
        ("vld", {"build": no_scalars}, ModelError, "build() returned no scalars without training"),
    ],
)
def test_errors(
    dataset: str, model: dict[str, Any], error: type[PrototrainError], words: str, trained: SimpleTrainer, base: Path
) -> None:
    with pytest.raises(error) as caught:
        run(base, dataset, **model)
    assert words in str(caught.value)
