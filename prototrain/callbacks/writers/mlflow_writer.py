"""MLflow writer."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from prototrain.callbacks.writers.tracker import Point, Tracker
from prototrain.config.values import as_text

if TYPE_CHECKING:
    from prototrain.experiment.record import Outcome

_OUTCOME = "prototrain.outcome"
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED", "running": "RUNNING"}
_METRICS_IN_BATCH, _PARAMS_IN_BATCH = 1000, 100  # limits of one request
_LONGEST_TAG = 5000


class MLflowWriter(Tracker):
    """Logs the run to MLflow.

        MLflowWriter("digits", uri="sqlite:///mlflow.db")

    Scalars become metrics, images become image series, and the config becomes parameters. The outcome becomes the
    status and the tag ``prototrain.outcome``.

    Requires the extra ``prototrain[mlflow]``. A resumed run continues the same MLflow run. MLflow parameters are
    immutable, so a changed config value is logged as the tag ``changed.KEY``. Characters that MLflow does not allow in
    names are replaced by underscores.

    Args:
        experiment: the name of the MLflow experiment, which is created if it does not exist. Defaults to the
            environment variable MLFLOW_EXPERIMENT_NAME, then to "Default".
        uri: the URI of the tracking server or store. Defaults to MLflow's setting, such as MLFLOW_TRACKING_URI.
    """

    extra = "mlflow"

    def __init__(self, experiment: str | None = None, *, uri: str | None = None) -> None:
        super().__init__()
        self._experiment = experiment
        self._uri = uri

    def setup(self) -> None:
        self.needed("mlflow")

    def connect(self, run: str | None) -> str:
        from mlflow.tracking import MlflowClient

        self._client = client = MlflowClient(tracking_uri=self._uri)
        known: Mapping[str, str] = {}
        if run is None:
            name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
            found = client.get_experiment_by_name(name)
            experiment = client.create_experiment(name) if found is None else found.experiment_id
            directory = self.trainer.experiment
            tags = None if directory is None else {"prototrain.directory": str(directory)}
            run = str(client.create_run(experiment, run_name=self.title, tags=tags).info.run_id)
        else:
            known = client.get_run(run).data.params
            client.update_run(run, status="RUNNING")  # fails if the run was deleted
        client.set_tag(run, _OUTCOME, str(self.trainer.outcome))
        self._send_config(run, known)
        return run

    def _send_config(self, run: str, known: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        config = self.trainer.run.config()
        texts = {} if config is None else {key: as_text(value) for key, value in config.to_plain().items()}
        params = [Param(key, text) for key, text in texts.items() if key not in known]
        for start in range(0, len(params), _PARAMS_IN_BATCH):
            self._client.log_batch(run, params=params[start : start + _PARAMS_IN_BATCH])
        for key, text in texts.items():
            if known.get(key, text) != text:
                self._client.set_tag(run, f"changed.{key}", text[:_LONGEST_TAG])

    def send(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = []
        for point in points:
            key = re.sub(r"[^\w\-./ ]", "_", point.name, flags=re.ASCII)[:250]
            milliseconds = round(point.time * 1000)
            if not point.pictures:
                metrics.append(Metric(key, point.value, milliseconds, point.step))
            for picture in point.pictures:
                at = {"step": point.step, "timestamp": milliseconds}
                self._client.log_image(self._run, picture, key=key, **at, synchronous=True)
        for start in range(0, len(metrics), _METRICS_IN_BATCH):
            self._client.log_batch(self._run, metrics=metrics[start : start + _METRICS_IN_BATCH], synchronous=True)

    def close(self, outcome: Outcome) -> None:
        self._client.set_tag(self._run, _OUTCOME, str(outcome)[:_LONGEST_TAG])
        self._client.set_terminated(self._run, status=_STATUS[outcome.state])
