"""Scalars as JSON."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson

from prototrain.callbacks.base import Callback, Priority, innermost
from prototrain.callbacks.monitor import Monitor
from prototrain.errors import CallbackError, ExperimentError
from prototrain.experiment.rows import RepeatedRows, Row, cut_back, rows_of, superseded
from prototrain.system.files import open_file, write_atomic
from prototrain.system.waiting import announcing


class JSONWriter(Monitor):
    """Writes ``metrics.jsonl``: for each step that has scalars a line ``{"step": 100, "time": ..., "trn/loss": ...}``.

    A resumed run continues after the row of its checkpoint: rows of later steps, which will be made again, move to
    ``metrics.superseded.jsonl``, and a last line that a kill left half-written is dropped. As they are made again they
    are compared with those, except for scalars that measure time or memory: one line, and run.json, have the outcome.
    Numbers that JSON has no word for (NaN, infinity) are written as null. What a full disk refuses is kept and written
    once there is room.

    Args:
        clock: returns seconds since the epoch, for the rows' "time".
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._rows: list[Row] | None = None  # what the file does not hold for certain, the last row among it
        self._offset = 0  # where the first of these rows begins in the file
        self._size = 0  # of the last row there, in bytes
        self._dirty = False
        self._failing = False
        self._repeated: RepeatedRows | None = None  # while rows of an earlier attempt are made again

    def setup(self) -> None:
        self._path = self.trainer.require_experiment("JSONWriter").metrics
        self._rows, self._dirty, self._failing, self._repeated = None, False, False, None

    def before_train(self) -> None:
        self._open_rows()

    def put_scalars(self, values: Mapping[str, float], step: int) -> None:
        rows = self._open_rows()
        if not rows or rows[-1]["step"] != step:
            if rows and self._repeated is not None:
                self._compare(rows[-1])
            if not self._dirty:  # the file holds the row before, which nothing will be added to
                self._offset += self._size
                rows.clear()
            rows.append({"step": step, "time": round(self._clock(), 3)})
        rows[-1].update(values)
        self._dirty = True

    def flush(self) -> None:
        if not self._dirty or self._rows is None:
            return
        lines = [orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in self._rows]
        try:
            _write_at(self._path, self._offset, b"".join(lines))
        except OSError as error:
            if not self._failing:
                self.trainer.log(f"WARNING: cannot write {self._path}: {error.strerror}; trying again later")
            self._failing = True
            return
        # The last row stays at hand: its step may get more scalars, and then it is written again in the same place.
        self._offset += sum(map(len, lines[:-1]))
        self._size = len(lines[-1])
        self._rows = self._rows[-1:]
        self._dirty = False
        if self._failing:
            self.trainer.log(f"{self._path} is written again, nothing is missing")
            self._failing = False

    def _compare(self, row: Row, *, is_last: bool = False) -> None:
        """Compare a row, to which nothing will be added, with that of an earlier attempt, and report the outcome."""
        assert self._repeated is not None
        outcome = self._repeated.compare(row, is_last=is_last)
        if outcome is None:
            return
        self._repeated = None
        self.trainer.log(outcome.text if outcome.is_same else f"WARNING: {outcome.text}")
        self.trainer.run.note(repeated=outcome.is_same)

    def after_train(self) -> None:
        if self._repeated is not None and self._rows:
            self._compare(self._rows[-1], is_last=True)
        self.flush()
        if self._dirty and self._rows is not None:
            self.trainer.log(f"WARNING: {self._path} lacks the rows since step {self._rows[0]['step']}")
        elif self._path.exists():
            with open(self._path, "rb") as file:
                os.fsync(file.fileno())

    def _open_rows(self) -> list[Row]:
        """The rows at hand; the first time, the file is cut back to the step that this run starts from.

        This cannot wait for `before_train`: callbacks that come earlier may already record something in theirs.
        """
        if self._rows is None:
            step, aside = self.trainer.global_step, superseded(self._path)
            try:
                size = aside.stat().st_size if aside.exists() else 0
                # A run that begins at step 0 makes every row again, including those of step 0.
                with announcing(f"bringing {self._path} back to step {step}", self.trainer.log):
                    last = cut_back(self._path, step or -1)
                self._size = 0 if last is None else self._path.stat().st_size - last[1]
                if step and aside.exists() and aside.stat().st_size > size:
                    self._repeated = RepeatedRows(aside, size, step)
            except OSError as error:
                raise ExperimentError(f"cannot bring {self._path} back to step {step}: {error.strerror}") from error
            self._rows, self._offset = ([], 0) if last is None else ([last[0]], last[1])
        return self._rows


def _write_at(path: Path, offset: int, data: bytes) -> None:
    """Write to a file from a position on, and end it there."""
    with open(open_file(path, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.seek(offset)
        file.write(data)
        file.truncate()


class StatJSON(Callback):
    """Writes ``stat.json`` whenever triggered: a list of ``{"epoch_num": 1, "global_step": 100, "trn/loss": ...}``.

    It is rebuilt from metrics.jsonl, so it needs a `JSONWriter`, is right after a resume, and takes longer the
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
