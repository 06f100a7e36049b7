from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import SimpleTrainer
from prototrain.callbacks import EarlyStopping, HumanHyperParamSetter, LearningRate, StopOnNaN
from prototrain.data.source import Share, shard_for_worker
from prototrain.distributed.cluster import Worker, find_cluster, slurm_port
from prototrain.errors import CallbackError, ConfigError
from prototrain.trainers.multi_worker import MultiWorkerTrainer
from tests.tiny import CountingTrainer, tiny_arrays, tiny_model
from tests.trainers.processes import run
from tests.trainers.test_replicated import endless, plain_build
from tests.trainers.worker import from_files


def assert_equal_one(datasets: Any, **order: Any) -> None:
    """Compare two workers with one trainer on the given datasets."""
    one = SimpleTrainer(tiny_model(build=plain_build, datasets=datasets))
    one.train([LearningRate(lambda step: 0.02 * 0.9 ** (step / 10)), StopOnNaN()], max_steps=12)
    results = run(plain=True, steps=12, **order)
    for result in results:
        assert result is not None and "error" not in result, result
        assert result["outputs"] == pytest.approx(dict(one.outputs), rel=1e-3, abs=1e-4)
        assert result["weights"] == results[0]["weights"]  # type: ignore[index]
        for name, value in one.variables.items():
            np.testing.assert_allclose(result["weights"][name], value.numpy(), rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_workers_equal_one() -> None:
    assert_equal_one(endless)


@pytest.mark.slow
def test_resume_is_exact_and_only_the_chief_writes(tmp_path: Path) -> None:
    whole = run(steps=12, experiment=str(tmp_path / "whole"))
    run(steps=5, experiment=str(tmp_path / "part"))
    part = run(steps=12, experiment=str(tmp_path / "part"))
    for one, other in zip(whole, part, strict=True):
        assert one is not None and other is not None
        assert one["weights"] == other["weights"]
        assert other["resume"].startswith("resumed at step 5")
    steps = [json.loads(line)["step"] for line in (tmp_path / "part" / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))


@pytest.mark.slow
@pytest.mark.parametrize(("act", "actor"), [("stop", 0), ("fail", 1)])
def test_stop_ends_all_workers_at_the_same_step(act: str, actor: int, tmp_path: Path) -> None:
    results = run(steps=100_000, experiment=str(tmp_path / "run"), actor=actor, act=act, at=12)
    assert all(result is not None for result in results)
    steps = {result["step"] for result in results if result is not None}
    assert len(steps) == 1 and 12 <= steps.pop() < 100_000
    if act == "fail":
        assert results[0] is not None and results[0]["error"].startswith("ClusterError: worker 1 (127.0.0.1:")
        assert results[0]["error"].endswith(" failed: RuntimeError: a callback failed")
    if act == "stop":
        assert [result["exit"] for result in results if result] == [143] * 2
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert len(saved) == 1 and saved[0].startswith("step-")


@pytest.mark.slow
def test_early_stopping_by_the_chief_restores_all_workers(tmp_path: Path) -> None:
    for patience, step in ((1, 14), (1, 14), (2, 21)):
        results = run(steps=100, experiment=str(tmp_path / "run"), patience=patience)
        assert [result and (result["step"], "error" in result) for result in results] == [(step, False)] * 2, results
        one, other = (result["weights"] for result in results if result)
        assert all(one[name] == other[name] for name in one if "seed" not in name)  # each tower has its own seeds


@pytest.mark.slow
def test_different_learning_rates_end_all_workers() -> None:
    for result in run(steps=40, halves=3):
        assert result is not None and "the learning rate differs between the workers" in result["error"], result


@pytest.mark.slow
def test_callbacks_of_the_last_step_may_change_the_rate_on_one_worker() -> None:
    results = run(steps=100, leaves=True, actor=1, act="leave", at=12)
    assert [result and (result["step"], "error" in result) for result in results] == [(12, False)] * 2, results


@pytest.mark.parametrize("callback", [EarlyStopping("x", mode="min", patience=1), HumanHyperParamSetter("state.x")])
@pytest.mark.parametrize("is_wrong", ["seconds", "chief_only"])
def test_callbacks_that_need_the_same_steps(callback: Any, is_wrong: str, experiment: Path) -> None:
    trainer = CountingTrainer(experiment=experiment)
    trainer.workers = 2
    interval = {"seconds": 5} if is_wrong == "seconds" else {"steps": 5}
    periodic = callback.every(**interval)
    periodic.chief_only = is_wrong == "chief_only"
    with pytest.raises(CallbackError, match="the same steps on all workers"):
        trainer.train([periodic], max_steps=2)


@pytest.mark.slow
def test_save_signal_of_any_worker(tmp_path: Path) -> None:
    results = run(steps=60, experiment=str(tmp_path / "run"), actor=1, act="save", at=12)
    assert [result["step"] for result in results if result is not None] == [60, 60]
    asked, last = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert "step-0000000012" <= asked < last == "step-0000000060"


@pytest.mark.slow
def test_non_finite_value_ends_all_workers(tmp_path: Path) -> None:
    results = run(steps=20, experiment=str(tmp_path / "run"), poisoned=[4, 7])
    for result in results:
        assert result is not None and result["error"].startswith("NonFiniteError") and "in step 4" in result["error"]
    assert (tmp_path / "run" / "checkpoints" / "step-0000000003").is_dir()


@pytest.mark.slow
def test_killed_chief_ends_the_others(tmp_path: Path) -> None:
    order = {"experiment": str(tmp_path / "run"), "actor": 0, "act": "die", "at": 40}
    killed, other = run(steps=100_000, **order)
    assert killed is None and other is not None and other["error"].startswith("ClusterError: worker"), other
    # A step may be incomplete when a worker is killed, so no checkpoint was saved for a resume.
    assert not [path for path in (tmp_path / "run").glob("checkpoints/step-*") if path.name > "step-0000000040"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (
            {},
            {"config": {"model__weight_decay__value": 0.5}},
            r"on the config: worker 1.*weight_decay.value null -> 0.5",
        ),
        ({"rows": 40}, {"rows": 24}, r"^ClusterError: worker 1 \(127.* ran out of training data behind step 3"),
    ],
    ids=["different configs", "the end of data"],
)
def test_all_workers_have_the_error(first: dict[str, Any], second: dict[str, Any], error: str) -> None:
    for result in run(first, second):
        assert result is not None and re.search(error, result["error"], re.DOTALL), result


@pytest.mark.slow
def test_stopped_worker_ends_the_others(tmp_path: Path) -> None:
    order: dict[str, Any] = {"experiment": str(tmp_path / "run"), "actor": 1, "act": "freeze", "at": 9}
    other, frozen = run(steps=100_000, config={"trainer__cluster_timeout": 6.0}, **order)
    assert frozen is None and other is not None
    assert other["error"].startswith("ClusterError: worker 1 (127.0.0.1:")
    # The frozen worker has done step 9, but the other one may not have received all of its part.
    assert other["error"].endswith("is gone or does not answer") and other["step"] in (8, 9)


@pytest.mark.slow
def test_data_error_ends_all_workers(tmp_path: Path) -> None:
    chief, other = run({}, {"missing": str(tmp_path / "train.csv")})
    assert chief is not None and other is not None
    assert "FileNotFoundError" in other["error"] and "train.csv" in other["error"]
    assert chief["error"].startswith("ClusterError: worker 1 (127.0.0.1:") and other["error"] in chief["error"]


def test_custom_run_step_is_refused() -> None:
    class Own(MultiWorkerTrainer):
        def run_step(self) -> dict[str, float]:
            return {}

    with pytest.raises(ConfigError, match=r"Own runs compiled steps only.*override train_step\(\) instead"):
        Own(tiny_model())


class TestCluster:
    def test_tf_config(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
        for kind, index, place in (("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)):
            task = {"type": kind, "index": index}
            monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
            assert find_cluster()[1] == Worker(place, 3)

    def test_slurm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TF_CONFIG", raising=False)
        for name, value in {
            "SLURM_PROCID": "1",
            "SLURM_STEP_NODELIST": "node[01-02]",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
            "SLURM_JOB_ID": "1251",
            "SLURM_STEP_ID": "0",
            "CUDA_VISIBLE_DEVICES": "0",
        }.items():
            monkeypatch.setenv(name, value)
        resolver, worker = find_cluster()
        assert worker == Worker(1, 2)
        assert resolver.cluster_spec().as_dict() == {"worker": ["node01:12032", "node02:12032"]}
        assert worker.addresses == ("node01:12032", "node02:12032")

    def test_slurm_jobs_that_share_a_node_have_ports_of_their_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ports = []
        for job, step in ((7, 0), (8, 0), (7, 1), (9_999_999, 0)):
            monkeypatch.setenv("SLURM_JOB_ID", str(job))
            monkeypatch.setenv("SLURM_STEP_ID", str(step))
            ports.append(slurm_port())
        assert len({port // 32 for port in ports}) == 4 and all(12000 <= port < 32000 for port in ports)


@pytest.mark.slow
def test_global_batch_is_the_workers_parts_in_order(tmp_path: Path) -> None:
    """The examples are in three files that are not equally long."""
    lines = [",".join(map(str, [*x, y])) for x, y in zip(*tiny_arrays().values(), strict=True)]
    for number, part in enumerate((lines[:9], lines[9:20], lines[20:])):
        (tmp_path / f"{number}.csv").write_text("\n".join(part) + "\n")
    place = str(tmp_path)

    def datasets() -> dict[str, tf.data.Dataset]:
        shares = [shard_for_worker(from_files(place), Share(i, 2, "files"), 4)["trn"] for i in range(2)]
        both = tf.data.Dataset.zip(*shares)
        return {"trn": both.map(lambda one, other: {name: tf.concat([one[name], other[name]], 0) for name in one})}

    assert_equal_one(datasets, files=place, config={"model__data_sharding": "files"})
