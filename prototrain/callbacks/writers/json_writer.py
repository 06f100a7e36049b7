"""Writer of metrics.jsonl."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import orjson

from prototrain.callbacks.monitor import Monitor
from prototrain.experiment.rows import RepeatedRows, Row, superseded, truncate_rows
from prototrain.system.terminal import announcing


class JSONWriter(Monitor):
    """Writes ``metrics.jsonl``, with a line ``{"step": 100, "time": ..., "trn/loss": ...}`` for each step with scalars.

    NaN and infinity are written as null. Rows that cannot be written, for example on a full disk, are written later.

    A resumed run continues after the row of its checkpoint and moves later rows to ``metrics.superseded.jsonl``. It
    compares the moved rows with the repeated ones, except for scalars that measure time or memory, and reports the
    result in a printed line and in run.json.
    """

    clock = staticmethod(time.time)

    def setup(self) -> None:
        self._path = self.trainer.require_experiment("JSONWriter").metrics
        self._rows: list[Row] | None = None  # unwritten rows and the last row; None until the file is open
        self._offset = 0  # file offset of the first of these rows
        self._size = 0  # bytes of the last row in the file
        self._dirty = False
        self._repeated: RepeatedRows | None = None  # set while a resumed run repeats rows

    def before_train(self) -> None:
        self._open()

    def put_scalars(self, values: Mapping[str, float], step: int) -> None:
        rows = self._open()
        if not rows or rows[-1]["step"] != step:
            if rows:
                self._compare(rows[-1])
            if not self._dirty:  # the previous row is complete and in the file
                self._offset += self._size
                rows.clear()
            rows.append({"step": step, "time": round(self.clock(), 3)})
        rows[-1].update(values)
        self._dirty = True

    def flush(self) -> None:
        if not self._dirty or self._rows is None:
            return
        lines = [orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in self._rows]
        try:
            with open(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
                file.seek(self._offset)
                file.write(b"".join(lines))
                file.truncate()
        except OSError as error:
            self.trainer.run.log_once(f"WARNING: cannot write {self._path}: {error.strerror}; trying again later")
            return
        # Keep the last row, since its step may get more scalars and is then written again.
        self._offset += sum(map(len, lines[:-1]))
        self._size = len(lines[-1])
        self._rows = self._rows[-1:]
        self._dirty = False

    def after_train(self) -> None:
        if self._rows:
            self._compare(self._rows[-1], is_last=True)
        self.flush()
        if self._dirty and self._rows:
            self.trainer.log(f"WARNING: {self._path} lacks the rows since step {self._rows[0]['step']}")
        elif self._path.exists():
            with open(self._path, "rb") as file:
                os.fsync(file.fileno())

    def _open(self) -> list[Row]:
        """Return the rows in memory. The first call truncates the file to the step that this run starts from.

        The first call may come before `before_train`, since earlier callbacks may record scalars in theirs.
        """
        if self._rows is None:
            step, aside = self.trainer.global_step, superseded(self._path)
            size = aside.stat().st_size if aside.exists() else 0
            # A run that starts at step 0 repeats every row, including those of step 0.
            with announcing(f"truncating {self._path} to step {step}", self.trainer.log):
                last = truncate_rows(self._path, -1 if self.trainer.run.is_fresh else step)
            self._rows, self._offset = ([], 0) if last is None else ([last[0]], last[1])
            self._size = 0 if last is None else self._path.stat().st_size - self._offset
            if step and aside.exists() and aside.stat().st_size > size:
                self._repeated = RepeatedRows(aside, size, step)
        return self._rows

    def _compare(self, row: Row, *, is_last: bool = False) -> None:
        """Compare a complete row with the row of an earlier attempt and report the result."""
        outcome = None if self._repeated is None else self._repeated.compare(row, is_last=is_last)
        if outcome is not None:
            self._repeated, (is_same, text) = None, outcome
            self.trainer.log(text if is_same else f"WARNING: {text}")
            self.trainer.run.note(repeated=is_same)
