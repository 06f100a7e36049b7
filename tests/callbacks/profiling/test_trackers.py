from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from prototrain.callbacks import (
    EstimatedTimeLeft,
    GPUMemoryTracker,
    GPUUtilizationTracker,
    GraphProfiler,
    HostMemoryTracker,
    ThroughputTracker,
)
from tests.callbacks.helpers import timed
from tests.tiny import CountingTrainer, tiny_trainer


@pytest.mark.parametrize(("samples", "name", "speed"), [(None, "steps", 0.1), (32, "samples", 3.2)])
def test_throughput(samples: int | None, name: str, speed: float) -> None:
    trainer = CountingTrainer()
    tracker = timed(ThroughputTracker(samples), lambda: trainer.global_step * 10.0)
    trainer.train([tracker.every(steps=3)], max_steps=7)
    assert trainer.monitors.history(f"perf/{name}_per_second") == [(step, pytest.approx(speed)) for step in (3, 6, 7)]


def test_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = CountingTrainer()
    seconds = [0, 10, 20, 30, 130, 230, 330, 430, 530, 630, 730]
    callback = timed(EstimatedTimeLeft(last_k=2), lambda: seconds[trainer.global_step])
    trainer.train([callback.every(steps=2)], max_steps=10)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("time left")]
    # Over the last two triggers: 10, 32.5, 77.5 and then 100 seconds a step.
    assert lines == ["time left: 1 min 20 s", "time left: 3 min 15 s", "time left: 5 min 10 s", "time left: 3 min 20 s"]


def nvml(count: int = 2) -> Any:
    """The driver's module, with two GPUs."""
    return SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=10 * handle + 5),
    )


def test_host_memory_and_busy_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    trainer = CountingTrainer()
    trainer.train([GPUUtilizationTracker().every(steps=2), HostMemoryTracker().every(steps=4)], max_steps=4)
    assert trainer.monitors.latest("perf/host_memory_gib") > 0.01
    assert trainer.monitors.latest("perf/host_memory_available_gib") > 0
    assert trainer.monitors.history("perf/gpu0_utilization") == [(2, 5.0), (4, 5.0)]
    assert trainer.monitors.history("perf/gpu1_utilization") == [(2, 15.0), (4, 15.0)]


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU")
@pytest.mark.parametrize(("module", "reason"), [(nvml(0), "no GPU; it needs"), (None, "import of pynvml halted")])
def test_no_gpus(module: Any, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    trainer = CountingTrainer()
    trainer.train([GPUMemoryTracker().every(steps=1), GPUUtilizationTracker().every(steps=1)], max_steps=2)
    printed = capsys.readouterr().out
    assert printed.count(f"GPUUtilizationTracker records nothing: {reason}") == 1
    assert printed.count("GPUMemoryTracker records nothing: there is no GPU") == 1
    assert trainer.monitors.names() == []


@pytest.mark.parametrize(("first_step", "max_steps"), [(1, 3), (3, 4)])
def test_profile(first_step: int, max_steps: int, experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiler = GraphProfiler(first_step=first_step, steps=2)
    tiny_trainer(experiment).train([profiler, GraphProfiler(first_step=20)], max_steps=max_steps)
    (file,) = (experiment / "summaries" / "plugins" / "profile").rglob("*.xplane.pb")
    assert b"step_num" in file.read_bytes()  # steps are marked: the page has times per step
    assert f"profiled up to step {first_step + 1}" in capsys.readouterr().out
