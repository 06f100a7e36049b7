from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import estimator
from prototrain.errors import ConfigError
from prototrain.estimator import BestExporter, EvalSpec, TrainSpec
from prototrain.system.storage import Storage
from tests.estimator.programs import classifier, endless, named

fsspec = pytest.importorskip("fsspec")

RECEIVE = estimator.build_parsing_serving_input_receiver_fn(
    {name: tf.io.FixedLenFeature([], tf.float32) for name in "ab"}
)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / "first"))
    return f"memory://{uuid.uuid4().hex}"


def names(url: str, first: str) -> set[str]:
    """The names at the URL, without times and counts."""
    return {name.split("/", 1)[0] for name in Storage(f"{url}/{first}").listing()}


def test_files_of_a_run_are_at_the_url(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_export(served: Any, place: Path) -> str:
        place.mkdir(parents=True)
        (place / "saved_model.pb").write_bytes(b"")
        return "with nothing"

    monkeypatch.setattr("prototrain.estimator.estimator.write_export", write_export)
    run = f"{url}/run"

    def train() -> dict[str, float]:
        exporter = BestExporter("best", RECEIVE, exports_to_keep=1)
        spec = EvalSpec(named, start_delay_secs=0, throttle_secs=0, exporters=exporter)
        measured, _ = estimator.train_and_evaluate(classifier(run), TrainSpec(endless, max_steps=20), spec)
        return measured

    def exports() -> tuple[set[str], set[str]]:
        return {name.split("/")[0] for name in Storage(f"{run}/export").listing()}, names(run, "export/best")

    measured, there = train(), exports()
    assert there[0] == {"best", "best.json"} and len(there[1]) == 1
    with pytest.raises(ConfigError, match="is a URL; give a directory"):
        classifier(run).export_saved_model(f"{url}/exports", RECEIVE)

    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path / "second"))  # another machine
    train()
    assert exports() == there  # the new value is not better than the old one
    for path in (f"{run}/checkpoints/step-0000000020", f"{run}/checkpoints/step-0000000020/model"):
        assert classifier(run).evaluate(named, name="again", checkpoint_path=path) == measured
    assert names(run, "summaries/eval_again")
    other = classifier(tmp_path / "other", warm_start_from=run).train(endless, steps=1)
    kernel = classifier(run).get_variable_value("logits/kernel")
    assert np.abs(other.get_variable_value("logits/kernel") - kernel).max() < 0.5
