"""Metrics of many rows: the fast reader agrees with a plain one, and a resume leaves the right rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prototrain.cli import main
from prototrain.experiment.rows import cut_back, superseded
from prototrain.runs import Range, read_run
from prototrain.runs.curves import charts
from prototrain.runs.metrics import read_columns, read_metrics
from tests.made import make, part, running

MOMENTS = [3.0, 1e9]


# -- the plain reader -------------------------------------------------------------------------------------------------


def plain_rows(content: bytes) -> list[dict[str, Any]]:
    """All rows at once, line by line."""
    rows = []
    for line in content.split(b"\n")[:-1]:
        try:
            row = orjson.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and type(row.get("step")) is int:
            rows.append(row)
    return rows


def plain_curves(rows: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in ("step", "time") and (value is None or isinstance(value, int | float)):
                curves.setdefault(name, []).append((row["step"], math.nan if value is None else float(value)))
    return curves


def fits(found: Range, curve: list[tuple[int, float]]) -> None:
    values = [value for _, value in curve if not math.isnan(value)] or [math.nan]
    pairs = {repr(pair) for pair in curve}
    assert repr(found.last) == repr(curve[-1][1])
    for (value, step), expected in ((found.lowest, min(values)), (found.highest, max(values))):
        assert value == expected or (math.isnan(value) and math.isnan(expected))
        assert repr((step, value)) in pairs


def plain_before(rows: list[dict[str, Any]], moment: float) -> float:
    times = [row["time"] for row in rows if isinstance(row.get("time"), int | float)]
    return max((time for time in times if time < moment), default=-math.inf)


def agrees(path: Path) -> None:
    """Compare texts, since NaN counts as well."""
    rows = plain_rows(path.read_bytes())
    curves = plain_curves(rows)
    found = read_metrics(path, MOMENTS)
    assert found.ranges.keys() == curves.keys()
    for name, curve in curves.items():
        fits(found.ranges[name], curve)
    assert found.last_step == (rows[-1]["step"] if rows else None)
    assert found.latest_before == {moment: plain_before(rows, moment) for moment in (*MOMENTS, math.inf)}
    pairs = {name: list(zip(column.steps, column.values, strict=True)) for name, column in read_columns(path).items()}
    assert {name: repr(curve) for name, curve in pairs.items()} == {name: repr(curve) for name, curve in curves.items()}


# -- files as they may be ---------------------------------------------------------------------------------------------

VALUES = st.one_of(
    st.floats(width=16, allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([None, True, False, 0, 1, -0.0, 0.0, 2**60, "text", "1.5", [1], {"a": 1}]),
)
ROWS = st.dictionaries(st.sampled_from(["trn/loss", "vld/loss", "a", "ü"]), VALUES, max_size=3)
TIMES = st.one_of(st.floats(0, 10), st.sampled_from([None, 1, True, "then"]))
NO_ROWS = st.sampled_from(
    [b"\n", b"[1]\n", b'{"a": 1}\n', b"\x00\x00\n", b'{"step": 3, "ti\n',
     b'\xef\xbb\xbf{"step":1}\n', b'{"step": 8}\r{"step": 9, "b": 2}\n', b'{"step": 5, "a": \xff}\n', b"NaN\n",
     b'{"step": true}\n', b'{"step": 1.5}\n', b'{"step": "3"}\n', b'{"step": 2}, {"step": 3}\n']
)  # fmt: skip


def encoded(row: dict[str, Any], step: Any, time: Any) -> bytes:
    return json.dumps({"step": step, **({} if time is None else {"time": time}), **row}).encode() + b"\n"


def in_order(rows: list[tuple[dict[str, Any], Any, list[bytes]]]) -> list[bytes]:
    """Lines in ascending order of the steps, with others between them."""
    return [line for step, (row, time, more) in enumerate(rows) for line in (encoded(row, step, time), *more)]


FILES = st.lists(st.tuples(ROWS, TIMES, st.lists(NO_ROWS, max_size=1))).map(in_order)


def small_parts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("prototrain.experiment.rows._BLOCK_BYTES", 100)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("metrics")


@settings(max_examples=150, deadline=None)
@given(lines=FILES, cut=st.integers(0, 400))
def test_the_fast_reader_agrees_with_a_plain_one(lines: list[bytes], cut: int, directory: Path) -> None:
    path = directory / "metrics.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        small_parts(patch)
        for content in (b"".join(lines), b"".join(lines)[:cut]):
            path.write_bytes(content)
            agrees(path)


@settings(max_examples=100, deadline=None)
@given(
    lines=FILES,
    step=st.integers(-1, 13),
    old=st.sampled_from([None, b"", b'{"step": 1}\n', b'{"st']),
    half=st.sampled_from([b"", b'{"step": 99, "ti']),
)
def test_a_resume_leaves_the_rows_up_to_a_step(
    lines: list[bytes], step: int, old: bytes | None, half: bytes, directory: Path
) -> None:
    path = directory / "metrics.jsonl"
    path.write_bytes(b"".join([*lines, half]))
    rows = plain_rows(path.read_bytes())
    superseded(path).unlink(missing_ok=True)
    if old is not None:
        superseded(path).write_bytes(old)
    with pytest.MonkeyPatch.context() as patch:
        small_parts(patch)
        found = cut_back(path, step)
    kept = [row for row in rows if row["step"] <= step]
    content = path.read_bytes()
    assert list(map(repr, plain_rows(content))) == list(map(repr, kept))
    aside = superseded(path).read_bytes() if superseded(path).exists() else b""
    moved = [row for row in rows if row["step"] > step]
    assert list(map(repr, plain_rows(aside))) == list(map(repr, [*plain_rows(old or b""), *moved]))
    if not kept:
        assert found is None and not content
    else:
        assert found is not None and repr(found[0]) == repr(kept[-1])
        assert [repr(row) for row in plain_rows(content[found[1] :])] == [repr(kept[-1])]


# -- in the commands --------------------------------------------------------------------------------------------------


def test_the_time_of_a_killed_run_follows_from_its_rows(tmp_path: Path) -> None:
    killed, last = running(started=1000.0), running(started=1500.0)
    rows = [{"step": step, "time": 1000.0 + 10 * step, "a": step} for step in range(1, 30)]
    make(tmp_path / "a", killed, rows=rows)
    assert read_run(tmp_path / "a").seconds == 290
    resumed = [*rows, {"step": 30, "time": 1600.0, "a": 3}]
    (tmp_path / "a" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in resumed))
    (tmp_path / "a" / "run.json").write_text(json.dumps({"parts": [killed, last]}))
    assert read_run(tmp_path / "a").seconds == 290 + 100
    (tmp_path / "a" / "run.json").write_text(json.dumps({"parts": [killed, running(started=1100.0), part()]}))
    assert read_run(tmp_path / "a").seconds == 90 + 0 + 40


def test_pictures_of_many_rows_show_every_peak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
