"""Reading metrics.jsonl with many rows, and after a resume."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from prototrain.cli import main
from prototrain.experiment.record import RunRecord, read_attempts
from prototrain.experiment.rows import cut_back, superseded
from prototrain.runs import Range, read_run
from prototrain.runs.curves import charts
from prototrain.runs.reading import read_columns, read_metrics
from tests.made import make, running

LINES = [
    b'{"step": 1, "time": 1.0, "a": 0.5, "b": null}', b'{"step": 2, "time": 2.0, "a": -1, "text": "x"}', b"[1]",
    b'{"step": "3"}', b'{"step": true, "a": 9}', b'{"step": 5, "a": \xff}',
    b'{"step": 6, "time": 6.5, "a": 0.5, "b": 2}', b'{"step": 7, "a": null}', b'{"ste',
]  # fmt: skip


def test_invalid_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\n".join(LINES))
    found = read_metrics(path)
    assert found.last_step == 7 and found.last_time == 6.5
    assert list(found.ranges) == ["a", "b"] and found.ranges["b"] == Range(2.0, (2.0, 6), (2.0, 6))
    assert math.isnan(found.ranges["a"].last) and found.ranges["a"].lowest == (-1.0, 2)
    assert found.ranges["a"].highest == (0.5, 1)
    column = read_columns(path)["a"]
    assert column.steps == [1, 2, 6, 7] and column.values[:3] == [0.5, -1.0, 0.5]


@pytest.mark.parametrize(
    ("step", "kept", "last"), [(-1, 0, None), (0, 0, None), (1, 1, 1), (2, 2, 2), (5, 2, 2), (6, 7, 6), (99, 8, 7)]
)
@pytest.mark.parametrize("old", [None, b'{"st'])
def test_resume_keeps_rows_up_to_its_step(
    step: int, kept: int, last: int | None, old: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\n".join(LINES))
    if old is not None:
        superseded(path).write_bytes(old)
    found = cut_back(path, step)
    before = b"".join(line + b"\n" for line in LINES[:kept])
    assert path.read_bytes() == before
    assert superseded(path).read_bytes() == (b"" if old is None else old + b"\n") + b"\n".join(LINES[kept:])
    if last is None:
        assert found is None
    else:
        assert found is not None and found[0]["step"] == last and found[1] == len(before) - len(LINES[kept - 1]) - 1


# -- in the commands --------------------------------------------------------------------------------------------------


def test_time_of_a_killed_run(tmp_path: Path) -> None:
    rows = [{"step": step, "time": 1000.0 + 10 * step, "a": step} for step in range(1, 30)]
    directory = make(tmp_path / "a", running(started=1000.0), rows=rows)
    assert read_run(directory).seconds == 290
    RunRecord(directory / "run.json", print).note()  # the next attempt
    first, second = read_attempts(directory / "run.json")
    assert (first.state, first.seconds, second.seconds) == ("running", 290.0, None)
    assert read_run(directory).seconds == 290


def test_downsampled_curves_show_every_peak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"step": step, "time": step / 10, "a": 100.0 if step == 7003 else step % 7} for step in range(20_000)]
    directory = make(tmp_path / "a", rows=[*rows, {"step": 20_000, "a": None}])
    run = read_run(directory)
    (line,) = charts([run], ["a"])["a"]
    assert (7003, 100.0) in zip(line.xs, line.ys, strict=True) and len(line.xs) < 5000
    assert (line.xs[0], line.xs[-1]) == (0, 20_000) and list(line.xs) == sorted(line.xs)
    assert len(run.scalars["a"]) == 20_001
    assert main(["report", str(directory)]) == 0 and main(["runs", str(tmp_path)]) == 0
    assert (directory / "report.html").stat().st_size < 500_000
    capsys.readouterr()
