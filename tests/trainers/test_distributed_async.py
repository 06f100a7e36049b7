from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator.remote_value import RemoteValueStatus

from prototrain.errors import ClusterError, ConfigError, StepError
from prototrain.trainers import distributed_async
from prototrain.trainers.distributed_async import ScheduledSteps, ServerCluster
from tests.trainers import processes

TASKS = ["chief", "worker", "worker", "ps"]
CLUSTER = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2", "127.0.0.1:3"], "ps": ["127.0.0.1:4"]}


def run(**order: Any) -> list[dict[str, Any] | None]:
    return processes.run(TASKS, trainer="asynchronous", **order)


@pytest.mark.slow
def test_it_trains_and_resumes_and_outlives_a_worker(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    chief, *servers = run(steps=100_000, experiment=str(directory), averaged=True, actor=0, act="signal", at=40)
    assert chief is not None and chief["exit"] == 143
    assert all(server is not None and server["exit"] == 0 for server in servers)  # they end when the chief does
    stopped = chief["step"]
    assert 40 <= stopped < 100_000 and (directory / "checkpoints" / f"step-{stopped:010d}").is_dir()
    assert chief["outputs"]["loss"] < 0.6
    assert chief["outputs"]["learning_rate"] == pytest.approx(0.02 * 0.9 ** ((stopped - 1) / 10))
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "vld/loss" in line][:5] == [7, 14, 21, 28, 35]

    steps = stopped + 40
    chief, one, other, server = run(
        steps=steps, experiment=str(directory), averaged=True, actor=0, act="kill", at=stopped + 10, victim=2
    )
    assert other is None and one is not None and server is not None
    assert chief is not None and "error" not in chief and chief["step"] == steps
    assert chief["resume"].startswith(f"resumed at step {stopped}")


@pytest.mark.slow
def test_a_value_that_is_not_finite_ends_it(tmp_path: Path) -> None:
    chief, *_ = run(steps=20, experiment=str(tmp_path / "run"), poisoned=[4, 7])
    assert chief is not None
    assert chief["error"].startswith("NonFiniteError") and "its update was not applied" in chief["error"]
    assert (tmp_path / "run" / "checkpoints" / f"step-{chief['step']:010d}").is_dir()
    assert all(np.isfinite(value).all() for value in chief["weights"].values())


@pytest.mark.slow
def test_a_lost_parameter_server_is_an_error(tmp_path: Path) -> None:
    chief, *_ = run(steps=100_000, experiment=str(tmp_path / "run"), actor=0, act="kill", at=12, victim=3)
    assert chief is not None
    assert chief["error"].startswith("StepError") and "parameter server 0 (127.0.0.1" in chief["error"]


class Result:
    """What a worker has given, as the coordinator has it."""

    _status = RemoteValueStatus.READY

    def __init__(self, *values: Any) -> None:
        self._values = values

    def get(self) -> tuple[Any, ...]:
        return self._values


def test_statistics_that_a_step_has_spoilt_are_put_back() -> None:
    statistics = tf.Variable([1.0, 2.0])
    batches = tf.data.Dataset.range(3)
    numbers = itertools.count()

    def schedule(step: Any, arguments: Any) -> Result:
        is_bad = next(numbers) == 1
        statistics.assign_add([np.nan if is_bad else 0.5, 1.0])  # nobody puts back what another step has read
        return Result(not is_bad, tf.zeros([0]), tf.zeros([0], tf.float64))

    steps = ScheduledSteps(
        SimpleNamespace(changed_early=lambda: [statistics], stop_requested=lambda: False),  # type: ignore[arg-type]
        SimpleNamespace(schedule=schedule, done=lambda: True),
        SimpleNamespace(),  # type: ignore[arg-type]
        lambda completed: None,
        10.0,
        50.0,
        lambda: None,
    )
    result = steps._run(iter(batches), 3, 0)
    assert (result.steps, result.is_finite) == (2, False)
    assert statistics.numpy().tolist() == [1.0, 2.0]


class TestCluster:
    @pytest.mark.parametrize("missing", ["chief", "worker", "ps"])
    def test_a_kind_that_is_missing(self, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
        kind = "worker" if missing != "worker" else "ps"
        rest = {name: addresses for name, addresses in CLUSTER.items() if name != missing}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": rest, "task": {"type": kind, "index": 0}}))
        with pytest.raises(ConfigError, match=f"the cluster has no '{missing}'"):
            ServerCluster.find()

    def test_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TF_CONFIG", raising=False)
        with pytest.raises(ConfigError, match="TF_CONFIG must be JSON such as"):
            ServerCluster.find()

    def test_a_server_ends_when_the_chief_is_gone(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        task = {"cluster": CLUSTER, "task": {"type": "ps", "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(task))
        monkeypatch.setattr(distributed_async.tf.distribute, "Server", lambda *_, **__: object())
        monkeypatch.setattr(distributed_async, "_POLL_SECONDS", 0)
        answers = itertools.chain([False] * 3 + [True, False, True], itertools.repeat(False))
        monkeypatch.setattr(distributed_async, "_answers", lambda _: next(answers))
        ticks = itertools.count(1)
        with pytest.raises(SystemExit) as end:
            distributed_async.serve(60.0, clock=lambda: float(next(ticks)))
        assert end.value.code == 0
        assert "the chief at 127.0.0.1:1 is gone" in capsys.readouterr().out

    def test_the_chief_does_not_wait_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": {"type": "chief", "index": 0}}))
        monkeypatch.setattr(distributed_async, "require_not_started", lambda *_: None)
        monkeypatch.setattr(distributed_async, "_answers", lambda address: address != "127.0.0.1:4")
        with pytest.raises(ClusterError, match=r"parameter server 0 .* did not come within 0\.1 seconds"):
            distributed_async.connect(0.1)

    def test_processes_that_are_gone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster = ServerCluster(CLUSTER, "chief", 0)
        alive = {"127.0.0.1:3", "127.0.0.1:4"}
        monkeypatch.setattr(distributed_async, "_answers", lambda address: address in alive)
        cluster.require_usable()
        alive.discard("127.0.0.1:3")
        with pytest.raises(StepError, match="none of the 2 workers is left"):
            cluster.require_usable()
        alive.discard("127.0.0.1:4")
        with pytest.raises(StepError, match=r"parameter server 0 \(127\.0\.0\.1:4\) is gone"):
            cluster.require_usable()
