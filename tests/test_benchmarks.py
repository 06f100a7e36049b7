"""That the benchmarks run; what they measure is never a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import growth, startup, steps
from benchmarks.workloads import WORKLOADS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside of Keras
def test_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workload", "lines", "--rounds", "1", "--steps", "20", "--output", str(tmp_path)]
    steps.main([*arguments, "--only", "callback"])
    out = capsys.readouterr().out
    assert "prototrain, usual callbacks" in out and "50 steps per execution, callbacks" in out
    rates = json.loads((tmp_path / "steps.json").read_text())["results"]["lines"]
    assert all(rate > 0 for found in rates.values() for rate in found)
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads(name: str) -> None:
    batch = next(iter(WORKLOADS[name].batches(lambda x, y: (x, y))))
    assert batch[0].shape == (WORKLOADS[name].batch, *WORKLOADS[name].shape)
    assert batch[0].dtype == WORKLOADS[name].dtype


def test_growth() -> None:
    assert growth.with_callbacks(2, 20) > 0
    assert growth.with_variables(3, 20) > 0
    assert growth.with_towers(2, 20) > 0


@pytest.mark.parametrize("subject", startup.SUBJECTS)
def test_startup(subject: str, capsys: pytest.CaptureFixture[str]) -> None:
    startup.main(["--child", subject])
    imports, first_step, memory = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert imports >= 0 and first_step > 0 and memory > 0
