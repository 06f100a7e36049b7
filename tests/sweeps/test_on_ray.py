"""A sweep on a Ray cluster of two nodes, one of which is lost during a trial."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prototrain.experiment import checkpoint_steps
from tests.preloaded import Program
from tests.sweeps.test_processes import SLOW
from tests.tiny import environment


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray cluster of two nodes on this machine."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # Ray's workers have a low priority by default and would hardly run during other tests.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    handler = signal.getsignal(signal.SIGTERM)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()
    signal.signal(signal.SIGTERM, handler)  # Ray has replaced it


@pytest.mark.drill
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_trial_of_a_lost_node_resumes_elsewhere(tmp_path: Path, nodes: Any) -> None:
    (tmp_path / "m.py").write_text(SLOW)
    (tmp_path / "slow").touch()
    grid = ["--grid", "model.lr_schedule.constant.value=0.1,0.2", "--jobs", "2", "--cluster", nodes.address]
    shared = ["-s", "model.num_steps=200", "-s", "trainer.checkpoint_save_interval=5"]
    command = ["-m", "prototrain.cli", "sweep", "m", *grid, *shared]
    program = Program(command, environment(PYTHONDONTWRITEBYTECODE="1"), tmp_path)
    directories = [tmp_path / f"experiments/e-{number}/checkpoints" for number in range(2)]
    while not all(map(checkpoint_steps, directories)):
        assert program.returncode is None, program.stdout.read()
        time.sleep(0.1)
    nodes.remove_node(nodes.list_all_nodes()[1], allow_graceful=False)
    logs = [directory.parent / "train.log" for directory in directories]
    while program.returncode is None and not any("resumed at step" in log.read_text() for log in logs):
        time.sleep(0.1)
    (tmp_path / "slow").unlink()
    code, said = program.finish()
    assert code == 0, said
    assert "trial 0 finished: vld/loss" in said and "trial 1 finished: vld/loss" in said
    (lost,) = (number for number in range(2) if len(re.findall(rf"^trial {number} runs", said, re.MULTILINE)) > 1)
    assert re.search(r"^start +resumed at step (\d+); data: ", logs[lost].read_text(), re.MULTILINE)
    assert all(checkpoint_steps(directory)[-1] == 200 for directory in directories)
