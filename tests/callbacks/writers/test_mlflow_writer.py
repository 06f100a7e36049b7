from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prototrain import Callback
from prototrain.callbacks import MLflowWriter, ModelSaver, Summaries
from tests.callbacks.helpers import Fails, Puts
from tests.tiny import At, CountingTrainer, tiny_config

pytestmark = pytest.mark.filterwarnings("default")  # MLflow's own


def test_run_and_its_continuation(experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)  # where artifacts go
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'store.db'}"

    def run(*callbacks: Callback, **config: Any) -> None:
        trainer = CountingTrainer(experiment=experiment)
        trainer.config = tiny_config(**config)
        writer = MLflowWriter("tests", uri=uri)
        writer.seconds = 0.0
        draw = At(5, lambda: trainer.monitors.put_image("vld/samples", np.full((3, 4), 9)))
        trainer.train([Summaries().every(steps=1), writer, draw, *callbacks], max_steps=6)

    with pytest.raises(RuntimeError):
        run(ModelSaver().every(steps=4), Puts(s2={"vld/x%": float("nan"), "inf": float("inf")}), Fails(5))
    client = mlflow.tracking.MlflowClient(tracking_uri=uri)
    of = client.get_experiment_by_name("tests").experiment_id
    [failed] = client.search_runs([of])
    assert failed.info.status == "FAILED" and failed.info.run_name == "experiment"
    assert failed.data.tags["prototrain.outcome"] == "failed: RuntimeError: on purpose"
    assert failed.data.tags["prototrain.directory"] == str(experiment)
    assert failed.data.params["model.batch_size"] == "8" and failed.data.params["model.num_steps"] == "6"

    run(model__batch_size=16)
    [ended] = client.search_runs([of])
    assert ended.info.run_id == failed.info.run_id and ended.info.status == "FINISHED"
    assert ended.data.tags["prototrain.outcome"] == "finished"
    assert ended.data.params["model.batch_size"] == "8" and ended.data.tags["changed.model.batch_size"] == "16"
    metrics = client.get_metric_history(ended.info.run_id, "trn/loss")
    # Steps that are repeated after the checkpoint are sent again.
    assert dict(sorted((metric.step, metric.value) for metric in metrics)) == {
        step: pytest.approx(1 / step) for step in range(1, 7)
    }
    assert np.isnan(client.get_metric_history(ended.info.run_id, "vld/x_")[0].value)
    pictures = [Path(file.path).name for file in client.list_artifacts(ended.info.run_id, "images")]
    assert {name.partition("+timestamp")[0] for name in pictures} == {"vld~samples+step+5"}
