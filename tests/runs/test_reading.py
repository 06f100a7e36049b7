from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from prototrain.cli import main
from prototrain.commands.runs import table
from prototrain.experiment import Experiment
from prototrain.experiment.rows import superseded, truncate_rows
from prototrain.runs import Range, Run, find_runs, read_run
from prototrain.runs.curves import charts
from tests.made import ENVIRONMENT, ROWS, make, part, running
from tests.tiny import fails


def says(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def read(experiment: Path, locked: bool) -> Run:
    """What is read at 1500 seconds, perhaps while a run holds the lock."""
    holder = Experiment(experiment)
    if locked:
        holder.lock()
    run = read_run(experiment, clock=lambda: 1500.0)
    holder.unlock()
    return run


NO_END = "killed, no end was recorded"


@pytest.mark.parametrize(
    ("parts", "locked", "state", "reason", "step"),
    [
        ([part()], False, "finished", None, 150),
        ([part()], True, "finished", None, 150),  # a run that was started again but has not begun
        ([part(state="failed", reason="no luck", step=140)], False, "failed", "no luck", 140),
        ([running()], True, "running", None, 180),
        ([running()], False, "interrupted", NO_END, 180),
        ([part(state="failed", reason="no luck"), running()], True, "running", None, 180),
        ([part(), part(state="failed", reason="changed", first_step=None, step=None)], False, "failed", "changed", 180),
        ([], True, "running", None, 180),
        ([], False, "interrupted", "there is no run.json", 180),
    ],
)
def test_states(
    parts: list[dict[str, Any]], locked: bool, state: str, reason: str | None, step: int, experiment: Path
) -> None:
    make(experiment, *parts, checkpoints=(100, 180))
    if not parts:
        (experiment / "run.json").unlink()
    run = read(experiment, locked)
    assert (run.state, run.reason, run.step, run.checkpoint) == (state, reason, step, 180)
    assert run.total_steps == (200 if parts else None)


@pytest.mark.parametrize(
    ("parts", "locked", "seconds"),
    [
        ([part(), part(seconds=2.5, started=1100.0)], False, 42.5),
        ([running()], False, 30.0),  # to its last row
        ([running()], True, 500.0),  # to now
        ([running(started=2000.0)], False, 0.0),
    ],
)
def test_time(parts: list[dict[str, Any]], locked: bool, seconds: float, experiment: Path) -> None:
    make(experiment, *parts)
    assert read(experiment, locked).seconds == seconds


def test_scalars(experiment: Path) -> None:
    first = {"step": 25, "time": 1005.0, "trn/loss": None}
    nan = {"step": 200, "time": 1040.0, "trn/loss": None, "vld/loss": None, "vld/bad": None, "note": "text"}
    make(experiment, rows=[first, *ROWS, nan])
    with open(experiment / "metrics.jsonl", "ab") as file:
        file.write(b'not a row\n{"step": 250, "trn/loss": 0.0')  # the last line is half-written
    run = read_run(experiment)
    assert list(run.scalars) == ["trn/loss", "vld/loss", "vld/bad"]
    assert run.scalars["vld/loss"][:2] == [(100, 0.4), (150, 0.75)]
    assert math.isnan(run.ranges["trn/loss"].last) and run.ranges["trn/loss"].lowest == (0.125, 150)
    assert run.ranges["vld/loss"].highest == (0.75, 150)
    assert math.isnan(run.ranges["vld/bad"].lowest[0])
    assert read_run(make(experiment.parent / "b")).ranges["trn/loss"] == Range(0.125, (0.125, 150), (0.5, 50))


def test_finding_runs(tmp_path: Path) -> None:
    for name in ("b/2", "b/1", "a", "a/analysis/inner"):
        make(tmp_path / name)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)] == ["a", "b/1", "b/2"]
    assert list(find_runs(tmp_path / "a")) == [tmp_path / "a"]


def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    base = tmp_path / "experiments"
    changes = [["trainer.experiment_name", "late", "m"], ["model.width", [8, 8], [4]], ["model.kind", "deep", "flat"]]
    make(base / "group" / "late", part(started=5000.0, changes=changes, total_steps=None), checkpoints=(100,))
    make(base / "early", part(state="failed", reason="out of " + "luck " * 50), rows=[])
    make(base / "broken")
    (base / "broken" / "config.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    said, complaint = capsys.readouterr()
    assert complaint.count("\n") == 1 and "broken/config.json, line 1: malformed JSON" in complaint
    rows = [line for line in said.splitlines()[2:] if not line.startswith(" ")]
    assert [row.split()[0] for row in rows] == ["early", "group/late"]  # in the order of their starts
    assert said.count(" luck") < 25
    late = [cell.strip() for cell in rows[1].split("  ") if cell.strip()]
    assert late[:-1] == ["group/late", "finished", "150", "0.75", "0.4", "100", "40 s"]
    assert late[-1].startswith("width=")


def test_table_is_short_and_marks_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ("model.optimizer.method", "model.lr_schedule.method", "model.rate")
    make(tmp_path / "a", part(changes=[[key, 0.123456, 1] for key in keys]), rows=ROWS)
    many = [[f"model.key{number}", "x" * 9, ""] for number in range(9)]
    make(tmp_path / "b", part(started=2000.0, changes=many), rows=[{**ROWS[1], "vld/loss": 0.3}])
    first, second = said = says(capsys, "runs", tmp_path).splitlines()[2:]
    assert "optimizer.m" in first and max(map(len, said)) <= 80
    assert second.endswith("\u2026") and "0.3*" in second and "*" not in first
    runs = [read_run(tmp_path / name) for name in "ab"]
    assert table(runs).rows[0][-1] == "optimizer.method=0.1235 lr_schedule.method=0.1235 rate=0.1235"
    assert "vld/loss" in table(runs).headers and "trn/loss" not in table(runs).headers


def test_table_shows_repeated_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "a", part(repeated=True), part(), rows=[])
    make(tmp_path / "b", part(repeated=True), part(repeated=False), rows=[])
    make(tmp_path / "c", part(), rows=[])
    said = says(capsys, "runs", tmp_path)
    assert "repeated" in said.splitlines()[0]
    found = {line.split()[0]: {"same", "differs"} & set(line.split()) for line in said.splitlines()[2:]}
    assert found == {"a": {"same"}, "b": {"differs"}, "c": set()}


def test_json_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nan = {"step": 200, "time": 1040.0, "vld/loss": None}
    changes = [["model.width", 8, 4]]
    make(tmp_path / "a", part(state="failed", reason="no luck", changes=changes), rows=[*ROWS, nan], checkpoints=(100,))
    make(tmp_path / "b", part(started=2000.0, changes=None), rows=[])
    said = says(capsys, "runs", tmp_path, "--json")
    a, b = json.loads(said, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert a == {
        "name": "a",
        "directory": str(tmp_path / "a"),
        "state": "failed",
        "reason": "no luck",
        "step": 150,
        "total_steps": 200,
        "losses": {
            "trn/loss": {"last": 0.125, "lowest": {"value": 0.125, "step": 150}, "highest": {"value": 0.5, "step": 50}},
            "vld/loss": {"last": None, "lowest": {"value": 0.4, "step": 100}, "highest": {"value": 0.75, "step": 150}},
        },
        "started": 1000.0,
        "seconds": 40.0,
        "checkpoint": 100,
        "repeated": None,
        "changes": [{"key": "model.width", "value": 8, "default": 4}],
    }
    assert (b["losses"], b["checkpoint"], b["changes"]) == ({}, None, None)


def test_filters_and_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "b", part(started=3000.0), config={"model.width": 4, "model.kind": "deep"})
    make(tmp_path / "a", part(state="failed", reason="x", started=2000.0), config={"model.width": 16}, rows=ROWS[:1])
    make(tmp_path / "c", config={"model.width": 8}, rows=[{**ROWS[1], "trn/loss": 9.0, "tst/x": 1.0}])

    def names(*options: str) -> list[str]:
        said = says(capsys, "runs", tmp_path, *options, "--json")
        return [run["name"] for run in json.loads(said)]

    assert names() == ["c", "a", "b"]
    assert names("--sort", "name") == ["a", "b", "c"] and names("--sort", "started", "--reverse") == ["b", "a", "c"]
    assert names("--sort", "model.width") == ["b", "c", "a"] and names("--sort", "trn/loss") == ["b", "a", "c"]
    assert names("--sort", "vld/loss") == ["a", "c", "b"]  # experiments without a value come first
    assert names("--filter", "state=f*") == ["c", "a", "b"]  # failed, finished
    assert names("--filter", "state=finished", "--filter", "model.width=8") == ["c"]
    assert names("--filter", "trainer.print_interval=100", "--filter", "model.kind=d??p") == ["b"]
    assert "none of these experiments has 'nothing'" in fails(capsys, "runs", tmp_path, "--filter", "nothing=1")
    assert "a scalar 'y*'; there are: trn/loss, vld/loss, tst/x" in fails(capsys, "runs", tmp_path, "--scalar", "y*")
    assert says(capsys, "runs", tmp_path, "--filter", "steps=7").startswith("none of the 3 experiments in")
    found = table([read_run(tmp_path / name) for name in "abc"], ["*/loss"])
    assert list(found.headers)[3:5] == ["trn/loss (lowest to highest)", "vld/loss (lowest to highest)"]
    assert found.rows[1][3] == "0.125 (0.125 to 0.5)"


def test_experiment_and_missing_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    assert says(capsys, "runs", tmp_path / "a").splitlines()[2].startswith("a ")
    assert says(capsys, "runs", tmp_path / "empty") == f"there are no experiments in {tmp_path}/empty\n"
    assert says(capsys, "runs", tmp_path / "empty", "--json") == "[]\n"
    assert "there is no directory" in fails(capsys, "runs", tmp_path / "nowhere")


def test_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    other = {**ENVIRONMENT, "run_id": "2", "command": ["x"], "versions": {"keras": "3.2.0", "numpy": "2.0.0"}}
    other["facts"] = {"towers": 2}
    make(tmp_path / "a", config={"model.width": 4, "trainer.print_interval": 100, "model.fn": "m:f"})
    make(tmp_path / "b", config={"model.width": [4], "model.fn": "m:f"}, environment=other, rows=ROWS[:1])
    make(tmp_path / "c", part(state="failed", reason="no luck"), rows=[])
    monkeypatch.chdir(tmp_path)
    config, environment, results = (
        {line.partition("  ")[0]: line.split("  ")[1:] for line in block.splitlines()[2:]}
        for block in says(capsys, "compare", "a", "b", "c").split("\n\n")
    )
    table = {name: [cell.strip() for cell in cells if cell] for name, cells in (config | environment | results).items()}
    assert list(config) == ["model.width", "model.fn"]  # a default is the same as its value
    assert table["model.width"] == ["4", "[4]", "-"]
    assert list(environment) == ["versions.keras", "versions.numpy", "facts.towers"]
    assert table["versions.keras"] == ["3.1.0", "3.2.0", "3.1.0"]
    assert table["state"] == ["finished", "finished", "failed: no luck"]
    assert table["trn/loss"] == ["0.125* (0.125 to 0.5)", "0.5", "-"]
    assert table["vld/loss"] == ["0.75 (0.4 to 0.75)", "-", "-"]
    assert "config: no differences" in says(capsys, "compare", "a", "a")


def test_compare_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "a", config={"model.width": 4})
    make(tmp_path / "b", rows=[])
    found = json.loads(says(capsys, "compare", tmp_path / "a", tmp_path / "b", "--json"))
    assert found["config"] == {"model.width": [4, "(unset)"]} and found["environment"] == {}
    assert [run["directory"] for run in found["runs"]] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert found["scalars"]["vld/loss"][0]["last"] == 0.75 and found["scalars"]["vld/loss"][1] is None


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
