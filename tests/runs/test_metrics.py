"""Metrics of many rows: what the stream, the thinned curves and the index say is what the plain reader says."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prototrain.cli import main
from prototrain.experiment.rows import cut_back, read_rows, superseded
from prototrain.runs import Range, metrics, read_run, series
from prototrain.runs.metrics import Metrics, read_metrics
from prototrain.runs.series import Series
from tests.made import make, part, running

MOMENTS = [3.0, 1e9]


# -- the plain reader -------------------------------------------------------------------------------------------------


def plain_rows(content: bytes) -> list[dict[str, Any]]:
    """All rows at once, with nothing but the standard library."""
    rows = []
    for line in content.splitlines(keepends=True):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if line.endswith(b"\n") and isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def plain_curves(rows: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in ("step", "time") and (value is None or isinstance(value, int | float)):
                curves.setdefault(name, []).append((row["step"], math.nan if value is None else float(value)))
    return curves


def plain_range(curve: list[tuple[int, float]]) -> Range:
    numbers = [(value, step) for step, value in curve if not math.isnan(value)]
    extremes = numbers or [(math.nan, curve[-1][0])]
    return Range(curve[-1][1], min(extremes), max(extremes, key=lambda pair: (pair[0], -pair[1])))


def plain_before(rows: list[dict[str, Any]], moment: float) -> float:
    times = [row["time"] for row in rows if isinstance(row.get("time"), int | float)]
    return max((time for time in times if time < moment), default=-math.inf)


def agrees(found: Metrics, content: bytes) -> None:
    """NaN and the sign of a zero count, so that it is the texts that are compared."""
    rows = plain_rows(content)
    curves = plain_curves(rows)
    ranges = {name: scalar.range for name, scalar in found.series.items()}
    assert repr(ranges) == repr({name: plain_range(curve) for name, curve in curves.items()})
    assert found.last_step == (rows[-1]["step"] if rows else None)
    assert found.latest_before == {moment: plain_before(rows, moment) for moment in found.latest_before}
    if found.has_curves:
        for name, curve in curves.items():
            thinned(found.series[name].curve, curve)


def thinned(curve: list[tuple[int, float]], whole: list[tuple[int, float]]) -> None:
    if len(whole) <= series.GROUPS:
        assert repr(curve) == repr(whole)
        return
    assert len(curve) <= 2 * series.GROUPS + 2
    rest = iter(map(repr, whole))
    assert all(repr(point) in rest for point in curve), "points of the curve, in their order"
    finite = [value for _, value in whole if math.isfinite(value)]
    kept = [value for _, value in curve if math.isfinite(value)]
    assert (min(kept, default=0), max(kept, default=0)) == (min(finite, default=0), max(finite, default=0))
    assert repr((curve[0], curve[-1])) == repr((whole[0], whole[-1]))


# -- files as they may be ---------------------------------------------------------------------------------------------

VALUES = st.one_of(
    st.floats(width=16),
    st.floats(),
    st.sampled_from([None, True, False, 0, 1, -0.0, 0.0, 10**25, "text", [1], {"a": 1}, math.inf, -math.inf]),
)
ROWS = st.dictionaries(st.sampled_from(["trn/loss", "vld/loss", "a", "ü"]), VALUES, max_size=3)
TIMES = st.one_of(st.floats(0, 10), st.sampled_from([None, 1, True, math.nan, "then"]))
STEPS = st.one_of(st.integers(-2, 12), st.sampled_from([True, None, 1.5, 10**20, "3"]))
NO_ROWS = st.sampled_from(
    [b"\n", b"[1]\n", b'{"a": 1}\n', b"\x00\x00", b'{"step": 3, "ti', b'{"step": 4,\r "a": 1}\n',
     b'\xef\xbb\xbf{"step":1}\n',
     b'{"step": 7, "a": 1}\r\n', b'{"step": 8}\r{"step": 9, "b": 2}\n', b'{"step": 5, "a": \xff}\n', b"NaN\n"]
)  # fmt: skip


def encoded(row: dict[str, Any], step: Any, time: Any) -> bytes:
    return json.dumps({"step": step, **({} if time is None else {"time": time}), **row}).encode() + b"\n"


LINES = st.one_of(st.builds(encoded, ROWS, st.integers(0, 12), TIMES), st.builds(encoded, ROWS, STEPS, TIMES), NO_ROWS)
SORTED = st.lists(ROWS).map(lambda rows: [encoded(row, step, step / 2) for step, row in enumerate(rows)])
FILES = st.one_of(
    st.lists(LINES), SORTED, st.tuples(SORTED, st.lists(LINES, max_size=2)).map(lambda two: [*two[0], *two[1]])
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, groups and indexes as small as they can be."""
    small_parts(monkeypatch)


def small_parts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("prototrain.experiment.rows._BLOCK_BYTES", 100)
    patch.setattr("prototrain.experiment.rows._TAIL_BYTES", 50)
    patch.setattr(metrics, "SMALL_BYTES", 10)
    patch.setattr(series, "GROUPS", 4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("metrics")


@settings(max_examples=100, deadline=None)
@given(lines=FILES, cut=st.integers(0, 400), curves=st.booleans(), edit=st.integers(0, 3))
def test_it_says_what_the_plain_reader_says(
    lines: list[bytes], cut: int, curves: bool, edit: int, directory: Path
) -> None:
    content = b"".join(lines)
    path = directory / "metrics.jsonl"
    (directory / "metrics.index").unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        small_parts(patch)
        patch.setattr(metrics, "_FRESH_NS", 0 if edit % 2 else 10**18)
        path.write_bytes(content[:cut])
        agrees(read_metrics(path, MOMENTS[: edit - 1], curves=curves), content[:cut])
        if edit == 2:  # it grew, or was made anew
            path.unlink()
            content = b'{"step": 0, "a": 1}\n' + content
        path.write_bytes(content)
        for _ in range(2):
            found = read_metrics(path, MOMENTS, curves=curves)
            assert found.latest_before.keys() >= set(MOMENTS)
            agrees(found, content)
        assert plain_curves(list(read_rows(content))).keys() == plain_curves(plain_rows(content)).keys()


@settings(max_examples=100, deadline=None)
@given(lines=FILES, step=st.integers(-1, 13), old=st.sampled_from([None, b"", b'{"step": 1}\n', b'{"st']))
def test_going_on_leaves_the_rows_up_to_a_step(
    lines: list[bytes], step: int, old: bytes | None, directory: Path
) -> None:
    path = directory / "metrics.jsonl"
    path.write_bytes(b"".join(lines))
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


COUNTS = [st.integers(1, 9)] * 3


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.one_of(st.floats(width=16), st.just(math.nan)), min_size=1), sizes=st.tuples(*COUNTS))
def test_a_curve_does_not_depend_on_the_pieces(values: list[float], sizes: tuple[int, ...]) -> None:
    steps = list(range(len(values)))
    whole, parts = Series(), Series()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "GROUPS", 4)
        whole.extend(steps, values)
        left, size = 0, cycle(sizes)
        while left < len(values):
            left, begin = left + next(size), left
            parts.extend(steps[begin:left], values[begin:left])
            parts = Series.of(*json.loads(json.dumps([parts.facts(), parts.shape()])))
    assert repr(whole.curve) == repr(parts.curve) or math.isnan(values[0])
    assert len(whole.curve) <= 10 and max(whole.curve)[0] == len(values) - 1


# -- the index --------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path, small: None) -> Path:
    """A file with an index that is up to date."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(encoded({"a": step % 7}, step, step / 2) for step in range(40)))
    os.utime(path, (1000, 1000))
    read_metrics(path, MOMENTS)
    assert (tmp_path / "metrics.index").exists()
    return path


class Read(Exception):
    """The file was read."""


def from_index(path: Path, monkeypatch: pytest.MonkeyPatch) -> Metrics:
    def read(*_: Any) -> Any:
        raise Read

    with monkeypatch.context() as patch:
        patch.setattr(metrics, "_read_on", read)
        return read_metrics(path, MOMENTS)


def test_a_file_that_was_not_touched_is_not_read_again(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agrees(from_index(made, monkeypatch), made.read_bytes())


def grow(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(encoded({"a": 9, "late": 1}, 40, 20.0))


def edit(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"a": 6', b'"a": 8', 1))
    os.utime(path, (1000, 1000))  # the size and the time are as they were


def spoil(path: Path) -> None:
    content = bytearray(path.with_name("metrics.index").read_bytes())
    content[len(content) // 2] ^= 1
    path.with_name("metrics.index").write_bytes(content)


def shorten(path: Path) -> None:
    index = path.with_name("metrics.index")
    index.write_bytes(index.read_bytes().partition(b"\n")[0] + b"\n")


@pytest.mark.parametrize(
    "change",
    [
        grow,
        edit,
        spoil,
        shorten,
        lambda path: path.write_bytes(path.read_bytes()[:500]),
        lambda path: path.write_bytes(encoded({"b": 1}, 3, 1.0) * 50),
        lambda path: path.with_name("metrics.index").write_bytes(b""),
        lambda path: path.with_name("metrics.index").write_bytes(b"\xff\n"),
        lambda path: path.with_name("metrics.index").unlink(),
    ],
)
def test_what_is_not_the_file_s_is_made_anew(
    change: Callable[[Path], object], made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(made)
    with pytest.raises(Read):
        from_index(made, monkeypatch)
    agrees(read_metrics(made, MOMENTS), made.read_bytes())
    os.utime(made, (2000, 2000))
    read_metrics(made, MOMENTS)
    agrees(from_index(made, monkeypatch), made.read_bytes())


def test_a_file_that_has_just_been_written_is_looked_at(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(made)
    agrees(read_metrics(made, MOMENTS), made.read_bytes())
    with pytest.raises(Read):  # it may still change without another time or size
        from_index(made, monkeypatch)


def test_the_index_of_a_copy_is_taken(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("metrics.jsonl", "metrics.index"):
        (other / name).write_bytes((tmp_path / name).read_bytes())
    monkeypatch.setattr(Metrics, "add", lambda self, block: blocks.append(block))
    blocks: list[bytes] = []
    read_metrics(other / "metrics.jsonl")
    assert b"".join(blocks) == made.read_bytes().splitlines(keepends=True)[-1]


@pytest.mark.parametrize("obstacle", ["directory", "index"])
def test_a_directory_that_cannot_be_written_to_works_without_an_index(
    obstacle: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "metrics.index"
    index.unlink()
    if obstacle == "index":
        index.mkdir()  # root may write anywhere, so that this has to do
    else:
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        agrees(read_metrics(made, MOMENTS), made.read_bytes())
    finally:
        tmp_path.chmod(0o700)
    assert sorted(path.name for path in tmp_path.iterdir() if path != index) == ["metrics.jsonl"]


# -- in the commands --------------------------------------------------------------------------------------------------


def test_the_time_of_a_killed_run_follows_from_its_rows(tmp_path: Path, small: None) -> None:
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
    rows = [{"step": step, "time": step / 10, "a": 100.0 if step == 7003 else 0.1} for step in range(20_000)]
    directory = make(tmp_path / "a", rows=rows)
    os.utime(directory / "metrics.jsonl", (1000, 1000))
    first = read_run(directory)
    again = read_run(directory)
    assert not again.metrics.has_curves and first.ranges == again.ranges
    assert first.curves == again.curves and (7003, 100.0) in again.curves["a"] and len(again.curves["a"]) < 5000
    assert len(again.scalars["a"]) == 20_000
    assert main(["report", str(directory)]) == 0 and main(["runs", str(tmp_path)]) == 0
    assert (directory / "report.html").stat().st_size < 500_000
    capsys.readouterr()


def test_what_takes_long_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None) -> None:
    said: list[str] = []
    monkeypatch.setattr(metrics, "_LARGE_BYTES", 100)
    monkeypatch.setattr(metrics, "announcing", lambda what, say: nullcontext(said.append(what)))
    make(tmp_path / "a")
    read_run(tmp_path / "a")
    assert said == [f"reading {tmp_path / 'a' / 'metrics.jsonl'}, 0 MB"]
