"""The scalars of a run in the form that tensorpack's tools read."""

from __future__ import annotations

import json

from prototrain.callbacks.base import Callback, Priority, innermost
from prototrain.callbacks.monitors.json_writer import JSONWriter
from prototrain.errors import CallbackError
from prototrain.experiment.rows import rows_of
from prototrain.system.files import write_atomic


class StatJSON(Callback):
    """Writes ``stat.json`` whenever triggered: a list of ``{"epoch_num": 1, "global_step": 100, "trn/loss": ...}``.

    It is made anew from metrics.jsonl, so that it needs a `JSONWriter`, is right after a resume, and takes longer the
    more rows there are.

    Raises:
        CallbackError: at setup, if there is no `JSONWriter` in the list.
    """

    priority = Priority.SAVE

    def setup(self) -> None:
        self.trainer.require_experiment("StatJSON")
        if not any(isinstance(innermost(callback), JSONWriter) for callback in self.trainer.callbacks):
            raise CallbackError("StatJSON makes its file of metrics.jsonl; add JSONWriter() to the callbacks")

    def trigger(self) -> None:
        self.trainer.monitors.flush()
        experiment = self.trainer.require_experiment("StatJSON")
        per_epoch = self.trainer.steps_per_epoch
        rows = []
        for row in rows_of(experiment.metrics):
            step = row.pop("step")
            row.pop("time", None)
            rows.append({**row, "epoch_num": max(step - 1, 0) // per_epoch + 1, "global_step": step})
        write_atomic(experiment.directory / "stat.json", json.dumps(rows))
