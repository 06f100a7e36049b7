"""A run in MLflow."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.writers.tracker import Point, Tracker, needed
from prototrain.config.values import as_text

if TYPE_CHECKING:
    from prototrain.experiment.record import Outcome

_OUTCOME = "prototrain.outcome"
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED", "running": "RUNNING"}
_METRICS_IN_BATCH, _PARAMS_IN_BATCH = 1000, 100  # what a server takes in one request
_LONGEST_TAG = 5000


class MLflowWriter(Tracker):
    """Sends the run to MLflow: scalars as metrics, pictures as image series, the config as parameters, the outcome as
    status and as the tag ``prototrain.outcome``.

    It needs the extra ``prototrain[mlflow]``. A resumed run continues the same run of MLflow. Parameters cannot be
    changed there: a new value is written as a tag, ``changed.KEY``. In names, characters that MLflow does not allow
    become underscores.

    Args:
        experiment: of MLflow's, made if it is not there; by default MLFLOW_EXPERIMENT_NAME, else "Default".
        uri: of the tracking server or store, such as ``sqlite:///mlflow.db``; by default MLflow's own, as
            MLFLOW_TRACKING_URI says it.
        name: of the run; by default that of the experiment's directory.
        tags: of the run.
        seconds: how often something is sent.
        clock: returns seconds since the epoch.
    """

    extra = "mlflow"

    def __init__(
        self,
        experiment: str | None = None,
        *,
        uri: str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        seconds: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(seconds=seconds, clock=clock)
        self._experiment = experiment
        self._uri = uri
        self._title = name
        self._tags = dict(tags or {})

    def setup(self) -> None:
        super().setup()
        needed("mlflow", self.name, self.extra)

    def connect(self, run: str | None) -> str:
        from mlflow.tracking import MlflowClient

        self._client = client = MlflowClient(tracking_uri=self._uri)
        known = None if run is None else self._find(run)
        if run is None or known is None:
            directory = self.trainer.experiment
            title = self._title or (None if directory is None else directory.directory.resolve().name)
            tags = self._tags | ({} if directory is None else {"prototrain.directory": str(directory)})
            run, known = client.create_run(self._experiment_id(), run_name=title, tags=tags).info.run_id, {}
        else:
            client.update_run(run, status="RUNNING")
        client.set_tag(run, _OUTCOME, str(self.trainer.outcome))
        self._send_config(str(run), known)
        return str(run)

    def _find(self, run: str) -> dict[str, str] | None:
        """The parameters of a run; None if it is gone."""
        from mlflow.exceptions import MlflowException

        try:
            found = self._client.get_run(run)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            found = None
        if found is not None and found.info.lifecycle_stage == "active":
            return dict(found.data.params)
        self.trainer.log(
            f"WARNING: {self.name}: run {run}, which this one continues, is gone from MLflow; a new one begins"
        )
        return None

    def _experiment_id(self) -> str:
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)

    def _send_config(self, run: str, known: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        config = self.trainer.run.config()
        texts = {} if config is None else {key: as_text(value) for key, value in config.to_plain().items()}
        new = [Param(key, text) for key, text in texts.items() if key not in known]
        for start in range(0, len(new), _PARAMS_IN_BATCH):
            self._client.log_batch(run, params=new[start : start + _PARAMS_IN_BATCH])
        for key, text in texts.items():
            if known.get(key, text) != text:
                self._client.set_tag(run, f"changed.{key}", text[:_LONGEST_TAG])

    def send(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_as_key(point.name), point.value, _milliseconds(point), point.step)
            for point in points
            if not point.pictures
        ]
        for start in range(0, len(metrics), _METRICS_IN_BATCH):
            self._client.log_batch(self._run, metrics=metrics[start : start + _METRICS_IN_BATCH], synchronous=True)
        for point in points:
            for picture in point.pictures:
                self._client.log_image(
                    self._run,
                    opened(picture),
                    key=_as_key(point.name),
                    step=point.step,
                    timestamp=_milliseconds(point),
                    synchronous=True,
                )

    def close(self, outcome: Outcome) -> None:
        self._client.set_tag(self._run, _OUTCOME, str(outcome)[:_LONGEST_TAG])
        self._client.set_terminated(self._run, status=_STATUS[outcome.state])


def opened(picture: bytes) -> Any:
    """The content of a PNG file as a picture of Pillow's."""
    from PIL import Image

    return Image.open(io.BytesIO(picture))


def _milliseconds(point: Point) -> int:
    return round(point.time * 1000)


def _as_key(name: str) -> str:
    """A name as MLflow allows it, also for pictures."""
    return re.sub(r"[^\w\-./ ]", "_", name, flags=re.ASCII)[:250]
