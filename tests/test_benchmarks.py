"""That the benchmarks run; what they measure is never a test."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import keras
import pytest

from benchmarks import growth, input, long_run, million_rows, scaling, startup, steps
from benchmarks.peers import compare
from benchmarks.workloads import DEEP, SIDE_BY_SIDE, WORKLOADS, Workload
from prototrain import cli


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside of Keras
def test_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workload", "lines", "--rounds", "1", "--steps", "20", "--output", str(tmp_path)]
    steps.main([*arguments, "--only", "usual callbacks"])
    out = capsys.readouterr().out
    assert "prototrain, usual callbacks" in out
    rates = json.loads((tmp_path / "steps.json").read_text())["results"]["lines"]
    assert all(rate > 0 for found in rates.values() for rate in found)
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("workload", [*WORKLOADS.values(), *DEEP.values(), *SIDE_BY_SIDE.values()])
def test_workloads(workload: Workload) -> None:
    batch = next(iter(workload.batches(lambda x, y: (x, y))))
    assert batch[0].shape == (workload.batch, *workload.shape)
    assert batch[0].dtype == workload.dtype


def test_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PROTOTRAIN_CACHE", str(tmp_path))  # which it changes
    monkeypatch.setattr(input.tf.config.threading, "set_intra_op_parallelism_threads", lambda number: None)
    arguments = ["--formats", "csv", "--examples", "300", "--rounds", "1", "--seconds", "0.01", "--steps", "20"]
    input.main([*arguments, "--output", str(tmp_path)])
    assert "by index, ratio" in capsys.readouterr().out
    assert json.loads((tmp_path / "input.json").read_text())["csv"]["rates"]["index"][0] > 0


def test_growth() -> None:
    assert growth.with_callbacks(2, 20) > 0
    assert growth.with_variables(3, 20) > 0
    assert growth.with_towers(2, 20) > 0


@pytest.mark.parametrize(("subject", "workload"), [("prototrain", "simple"), ("Keras fit", "mlp")])
def test_startup(subject: str, workload: str, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    startup.main(["--child", subject, "--workload", workload, "--began", str(time.time())])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(found["times"]) == list(startup.PARTS) and found["memory"] > 0
    assert all(seconds >= 0 for taken in found["times"].values() for seconds in taken)


def test_startup_in_a_table() -> None:
    one, other = ({"times": dict.fromkeys(startup.PARTS, (cpu, 2.0)), "memory": 100} for cpu in (1.0, 4.0))
    rows = startup.table({"mlp": {"prototrain": [one] * 3, "Keras fit": [other]}}).splitlines()
    assert rows[2].split() == ["mlp", "prototrain", *["1.00", "(2.0)"] * 4, "4.00", "(8.0)", "100"]
    assert rows[4].split() == ["ratio", *["0.25"] * 5, "1.00"]


def test_a_long_run(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long_run.main(["--steps", "40", "--every", "5", "--save-every", "20", "--directory", str(scratch / "run")])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if re.match(r" +\d+ +\d+ ", line)]
    assert [int(row[0]) for row in rows] == list(range(5, 41, 5))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({7: {"rss": 104}, 5: {"rss": 103}}, []),
        ({7: {"rss": 105}}, ["rss grew from 100 to 105"]),
        ({3: {"handles": 11}, 6: {"handles": 11}}, []),
        ({1: {"handles": 11}, 6: {"handles": 11}}, ["handles grew from 10 to 11"]),  # the first comes in the warm-up
        (
            {8: {"threads": 20, "checkpoints": 5.6}},
            ["threads grew from 19 to 20", "checkpoints grew from 5.0 to 5.6 MB"],
        ),
    ],
)
def test_what_counts_as_a_leak(changes: dict[int, dict[str, float]], found: list[str]) -> None:
    row = {"rss": 100.0, "handles": 10.0, "threads": 19.0, "checkpoints": 5.0}
    rows = [{**row, "step": 10.0 * number, **changes.get(number, {})} for number in range(1, 9)]
    assert long_run.growth(rows, 80) == found


def test_many_rows(scratch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert min(million_rows.measure(["-c", "pass"])) > 0

    def here(arguments: list[str]) -> tuple[float, float, float]:
        if arguments[0] == "-m":
            assert cli.main(arguments[2:]) == 0
        else:
            monkeypatch.setattr(sys, "argv", ["-c", *arguments[2:]])
            exec(arguments[1], {})
        return 0.0, 0.0, 0.0

    monkeypatch.setattr(million_rows, "measure", here)
    million_rows.main(["--rows", "2000", "--experiments", "2", "--directory", str(scratch / "made")])
    assert len(re.findall(r"\d+\.\d +\d+\.\d +\d+\.\d$", capsys.readouterr().out, re.MULTILINE)) == 7
    assert (scratch / "made" / "large" / "one" / "metrics.index").exists()


@pytest.mark.parametrize("millions", [0.1, 2])
def test_a_workload_of_so_many_parameters(millions: float) -> None:
    inputs = keras.Input((64,))
    model = keras.Model(inputs, scaling.workload_of(millions).logits(inputs, True))
    assert model.count_params() == pytest.approx(millions * 1e6, rel=0.02)


def test_what_scaling_makes_of_its_figures() -> None:
    seconds = {scaling.OURS: 0.001, scaling.LOOP: 0.002, scaling.ALONE: 0.001}
    results = {
        scaling.Setting("towers", count, 0.1, 1, 10): {name: [one * count] for name, one in seconds.items()}
        for count in (1, 2)
    }
    lines = [line.split() for line in scaling.table(results, "towers", 0.1).splitlines()]
    assert lines[2] == ["prototrain", "1000", "(1.00)", "500", "(0.50)"]
    assert lines[-3][-2:] == ["50%", "50%"] and lines[-2][-2:] == ["-1000", "-2000"] and lines[-1][-1] == "-1000"


def test_peers_in_a_table() -> None:
    one = {"loss": 0.5, "parameters": 10.0, "megabytes": 100.0}
    turns = {
        compare.OURS: [{**one, "seconds": seconds} for seconds in (4.0, 1.0, 2.0, 3.0)],
        "other": [{**one, "seconds": seconds} for seconds in (5.0, 4.0, 4.0, 3.0)],
    }
    rows = compare.table(turns, 100).splitlines()
    assert rows[2].split()[-8:] == ["20", "1.00", "(1.00", "to", "1.00)", "2.0", "100", "0.500"]
    assert rows[3].split() == ["other", "40", "2.00", "(1.00", "to", "4.00)", "1.0", "100", "0.500"]


def test_peers_that_are_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(compare.importlib.util, "find_spec", lambda name: None if name == "jax" else object())
    assert compare.chosen(["jit", "Orbit"]) == [
        "prototrain, usual callbacks",
        "prototrain, model.jit_compile",
        "Orbit, 50 steps per loop",
    ]
    assert capsys.readouterr().out == "left out: JAX by hand, jit: jax not installed\n"


def test_peers_that_fail(tmp_path: Path) -> None:
    options = ["--data", "nowhere.npz", "--workload", "mlp", "--steps", "1"]
    process = compare.Process("Lightning", options, str(tmp_path))
    with pytest.raises(compare.LeftOut, match="nowhere"):
        process.reply()
    process.end()
