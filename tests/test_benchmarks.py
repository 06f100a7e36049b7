"""The benchmarks run; their times are not tested."""

from __future__ import annotations

import pytest

from benchmarks.peers import compare
from benchmarks.workloads import WORKLOADS, Workload


@pytest.mark.parametrize("workload", WORKLOADS.values())
def test_workloads(workload: Workload) -> None:
    batch = next(iter(workload.batches(lambda x, y: (x, y))))
    assert batch[0].shape == (workload.batch, *workload.shape)
    assert batch[0].dtype == workload.dtype


def test_table_of_peers() -> None:
    one = {"loss": 0.5, "parameters": 10.0, "megabytes": 100.0}
    turns = {
        compare.OURS: [{**one, "seconds": seconds} for seconds in (4.0, 1.0, 2.0, 3.0)],
        "other": [{**one, "seconds": seconds} for seconds in (5.0, 4.0, 4.0, 3.0)],
    }
    rows = compare.table(turns, 100).splitlines()
    assert rows[2].split()[-8:] == ["20", "1.00", "(1.00", "to", "1.00)", "2.0", "100", "0.500"]
    assert rows[3].split() == ["other", "40", "2.00", "(1.00", "to", "4.00)", "1.0", "100", "0.500"]


def test_missing_peers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(compare.importlib.util, "find_spec", lambda name: None if name == "jax" else object())
    assert compare.chosen(["compile: loop", "JAX by hand, jit"]) == [
        "prototrain, usual callbacks",
        "prototrain, model.jit_compile: loop",
    ]
    assert capsys.readouterr().out == "left out: JAX by hand, jit: jax not installed\n"
