"""Writers for the experiment trackers MLflow and Weights & Biases, and their base class."""

from __future__ import annotations

import importlib
import io
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.base import Priority
from prototrain.callbacks.monitor import Monitor
from prototrain.config.values import as_text
from prototrain.errors import CallbackError
from prototrain.system.tracebacks import in_one_line

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

    from prototrain.experiment.record import Outcome


class Tracker(Monitor):
    """Sends scalars, images, the config and the outcome of a run to an experiment tracker.

    The first failure of a run is reported. Values that are not sent are only in metrics.jsonl. Checkpoints hold the id
    of the tracker's run, which a resumed run continues.

    Subclasses define `connect`, `send` and `close`.

    Attributes:
        extra: the extra of prototrain that installs the tracker's package.
    """

    # Runs after the savers, since a failed save is part of the outcome.
    priority = Priority.SAVE + 100
    extra: str

    def __init__(self) -> None:
        self._run: str | None = None
        self._is_open = False
        self._has_failed = False

    def needed(self, module: str) -> Any:
        """Import a module of the tracker's extra; raise CallbackError, naming the extra, if it is missing."""
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            text = f"{self.name} needs {error.name}, which is not installed; pip install 'prototrain[{self.extra}]'"
            raise CallbackError(text) from None

    def connect(self, run: str | None) -> str:
        """Continue the tracker's run of this id, or start a new one; send the config and return the run's id."""
        raise NotImplementedError

    def send(self, values: Mapping[str, Any], step: int) -> None:
        """Send scalars (floats) and images (lists of Pillow's) by name. Training waits until this returns."""
        raise NotImplementedError

    def close(self, outcome: Outcome) -> None:
        """Send what is left, and report the end and the outcome of the run."""
        raise NotImplementedError

    def attempt(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function. The first error of a run is printed; no error ends the training."""
        try:
            function(*arguments)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                self.trainer.log(f"WARNING: {self.name}: run {self._run} is not complete: {in_one_line(error)}")

    def before_train(self) -> None:
        if self._is_open:  # another callback's `before_train` may have recorded scalars
            return
        try:
            self._run = self.connect(self._run)
        except Exception as error:
            raise CallbackError(f"{self.name} cannot begin: {in_one_line(error)}") from error
        self._is_open, self._has_failed = True, False

    def put_scalars(self, values: Mapping[str, float], step: int) -> None:
        self.before_train()
        self.attempt(self.send, values, step)

    def put_event(self, prefix: str, event: Event) -> None:
        self.before_train()
        for value in event.summary.value:
            name = f"{prefix}/{value.tag}" if prefix else value.tag
            if value.metadata.plugin_data.plugin_name == "images":
                pillow, files = self.needed("PIL.Image"), value.tensor.string_val[2:]  # skip the width and the height
                self.attempt(self.send, {name: [pillow.open(io.BytesIO(file)) for file in files]}, event.step)
            else:
                self.trainer.run.log_once(f"WARNING: {self.name} takes scalars and pictures, not histograms and text")

    def after_train(self) -> None:
        if self._is_open:
            self._is_open = False
            self.attempt(self.close, self.trainer.outcome)

    def state_dict(self) -> dict[str, Any]:
        return {"run": self._run}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run = state["run"]

    @property
    def title(self) -> str | None:
        """The name of the run: the name of the experiment directory, or None."""
        experiment = self.trainer.experiment
        return None if experiment is None else experiment.directory.resolve().name

    @property
    def config(self) -> dict[str, Any]:
        """The run's config as JSON values; empty for a trainer without a config."""
        config = self.trainer.run.config()
        return {} if config is None else config.to_plain()


_OUTCOME = "prototrain.outcome"
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED", "running": "RUNNING"}
_LONGEST_TAG = 5000


class MLflowWriter(Tracker):
    """Logs the run to MLflow.

        MLflowWriter("digits", uri="sqlite:///mlflow.db")

    Requires the extra ``prototrain[mlflow]``. Scalars become metrics and the config becomes parameters. These cannot
    change, so a changed config value becomes the tag ``changed.KEY``. The outcome becomes the status and the tag
    ``prototrain.outcome``. Characters that MLflow does not allow in names are replaced by underscores. A thread sends
    new values every five seconds; if a request and MLflow's retries fail, its values are dropped.

    Args:
        experiment: the name of the MLflow experiment, which may be new. Defaults to the environment variable
            MLFLOW_EXPERIMENT_NAME, then to "Default".
        uri: the URI of the tracking server or store. Defaults to MLflow's setting, such as MLFLOW_TRACKING_URI.
    """

    extra = "mlflow"
    seconds = 5.0  # the least time between two transfers

    def __init__(self, experiment: str | None = None, *, uri: str | None = None) -> None:
        super().__init__()
        self._waiting: list[tuple[str, Any, int, int]] = []  # name, value, step, time in milliseconds
        self._sending: Thread | None = None
        self._sent_at = 0.0
        self._experiment = experiment
        self._uri = uri

    def setup(self) -> None:
        self.needed("mlflow")

    def connect(self, run: str | None) -> str:
        from mlflow.entities import Param, RunTag
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
        texts = {key: as_text(value) for key, value in self.config.items()}
        changed = {f"changed.{key}": text[:_LONGEST_TAG] for key, text in texts.items() if known.get(key, text) != text}
        tags = {_OUTCOME: str(self.trainer.outcome), **changed}
        params = [Param(key, text) for key, text in texts.items() if key not in known]
        client.log_batch(run, params=params, tags=[RunTag(*tag) for tag in tags.items()])
        return run

    def send(self, values: Mapping[str, Any], step: int) -> None:
        now = round(time.time() * 1000)
        self._waiting += [(name, value, step, now) for name, value in values.items()]

    def flush(self) -> None:
        # MLflow's own queue sends each value with its own request. While a server is down, each of them is retried for
        # minutes, and the program cannot end before. Here all new values wait for the one request that is retried.
        is_sending = self._sending is not None and self._sending.is_alive()
        if self._waiting and not is_sending and time.monotonic() - self._sent_at >= self.seconds:
            values, self._waiting = self._waiting, []
            self._sending = Thread(target=self.attempt, args=(self._log, values), daemon=True)
            self._sending.start()
            self._sent_at = time.monotonic()

    def _log(self, values: Sequence[tuple[str, Any, int, int]]) -> None:
        from mlflow.entities import Metric

        metrics = []
        for name, value, step, now in values:
            key = re.sub(r"[^\w\-./ ]", "_", name, flags=re.ASCII)[:250]
            if not isinstance(value, list):
                metrics.append(Metric(key, value, now, step))
                continue
            for picture in value:
                self._client.log_image(self._run, picture, key=key, step=step, timestamp=now, synchronous=True)
        self._client.log_batch(self._run, metrics=metrics, synchronous=True)

    def close(self, outcome: Outcome) -> None:
        if self._sending is not None:
            self._sending.join()
        self.attempt(self._log, self._waiting)
        self._waiting = []
        self._client.set_tag(self._run, _OUTCOME, str(outcome)[:_LONGEST_TAG])
        self._client.set_terminated(self._run, status=_STATUS[outcome.state])


_EXIT_CODE = {"finished": 0, "interrupted": 130, "failed": 1, "running": 0}


class WandbWriter(Tracker):
    """Logs the run to Weights & Biases.

        WandbWriter("digits", mode="offline")

    Requires the extra ``prototrain[wandb]``. Logs scalars over ``global_step``, and the outcome as the exit code and in
    the summary. Without a network, use ``mode="offline"`` and run ``wandb sync`` later.

    Args:
        project: the W&B project. Defaults to the environment variable WANDB_PROJECT.
        options: more arguments of `wandb.init`, such as ``name="first"``, ``tags=["small"]`` or ``dir="/tmp"``.
    """

    extra = "wandb"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__()
        self._options = {"project": project, "resume": "allow", "reinit": "create_new", **options}

    def setup(self) -> None:
        self._wandb = self.needed("wandb")

    def connect(self, run: str | None) -> str:
        options = {"name": self.title, **self._options} | ({} if run is None else {"id": run})
        self._handle = self._wandb.init(**options)
        self._handle.config.update(self.config, allow_val_change=True)
        # W&B's built-in step drops late values, such as those of a validation after a stop.
        self._handle.define_metric("global_step", hidden=True)
        self._handle.define_metric("*", step_metric="global_step")
        self._handle.summary["outcome"] = str(self.trainer.outcome)
        return str(self._handle.id)

    def send(self, values: Mapping[str, Any], step: int) -> None:
        pictures = {name: [*map(self._wandb.Image, value)] for name, value in values.items() if isinstance(value, list)}
        self._handle.log({"global_step": step, **values, **pictures})

    def close(self, outcome: Outcome) -> None:
        self._handle.summary["outcome"] = str(outcome)
        self._handle.finish(exit_code=_EXIT_CODE[outcome.state])
