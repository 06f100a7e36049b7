"""What the driver says of GPUs, with files and a program in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from prototrain import towers
from prototrain.towers import gpus_in_machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without GPUs, and with no programs but those of its directory `bin`."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("bin", "gpus", "dev"):
        (tmp_path / name).mkdir()
    return tmp_path


def found(machine: Path) -> list[str]:
    return gpus_in_machine(machine / "gpus", machine / "dev")


def test_the_driver_says_what_there_is(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(machine) == []
    for bus, text in (("0000:01", "Model: \t\t NVIDIA L4\nIRQ: 1\n"), ("0000:02", "IRQ: 2\n")):
        (machine / "gpus" / bus).mkdir()
        (machine / "gpus" / bus / "information").write_text(text)
    assert found(machine) == []  # a container that was given none
    (machine / "dev" / "nvidia0").touch()
    assert found(machine) == ["NVIDIA L4", "a GPU"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert found(machine) == []


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("echo 'GPU 0: NVIDIA A100 (UUID: GPU-1)'; echo 'GPU 1: Tesla T4 (UUID: GPU-2)'", ["NVIDIA A100", "Tesla T4"]),
        ("echo 'NVIDIA-SMI has failed'; exit 9", []),
    ],
)
def test_so_does_its_program(machine: Path, program: str, names: list[str]) -> None:
    (machine / "bin" / "nvidia-smi").write_text(f"#!/bin/sh\n{program}\n")
    (machine / "bin" / "nvidia-smi").chmod(0o755)
    assert found(machine) == names


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="TensorFlow can use a GPU here")
@pytest.mark.parametrize(("has_cuda", "reason"), [(True, "does not find the CUDA libraries"), (False, "without CUDA")])
def test_a_gpu_that_tensorflow_cannot_use(has_cuda: bool, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert towers.in_words(["CPU:0", "GPU:7"]) == "CPU:0, GPU:7"
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: has_cuda)
    monkeypatch.setattr(towers, "gpus_in_machine", list)
    assert towers.why_no_gpu() is None
    monkeypatch.setattr(towers, "gpus_in_machine", lambda: ["L4", "L4"])
    said = towers.why_no_gpu() or ""
    assert said.startswith("WARNING: there is a GPU (L4 and 1 more), and TensorFlow") and reason in said
    assert said.endswith("pip install 'tensorflow[and-cuda]'")
