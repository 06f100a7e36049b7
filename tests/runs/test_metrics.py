"""Reading metrics.jsonl with many rows, and after a resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from prototrain.cli import main
from prototrain.experiment.rows import superseded, truncate_rows
from prototrain.runs import read_run
from prototrain.runs.curves import charts
from tests.made import make

LINES = [
    b'{"step": 1, "time": 1.0, "a": 0.5, "b": null}', b'{"step": 2, "time": 2.0, "a": -1, "text": "x"}', b"[1]",
    b'{"step": "3"}', b'{"step": true, "a": 9}', b'{"step": 5, "a": \xff}',
    b'{"step": 6, "time": 6.5, "a": 0.5, "b": 2}', b'{"step": 7, "a": null}', b'{"ste',
]  # fmt: skip


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
    found = truncate_rows(path, step)
    before = b"".join(line + b"\n" for line in LINES[:kept])
    assert path.read_bytes() == before
    assert superseded(path).read_bytes() == (b"" if old is None else old + b"\n") + b"\n".join(LINES[kept:])
    if last is None:
        assert found is None
    else:
        assert found is not None and found[0]["step"] == last and found[1] == len(before) - len(LINES[kept - 1]) - 1


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
