"""What `nvidia-smi` reports, with a stand-in for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from prototrain import towers
from prototrain.towers import gpus_in_machine


@pytest.mark.parametrize(
    ("program", "hidden", "names"),
    [
        ("echo 'GPU 0: NVIDIA A100 (UUID: 1)'; echo 'GPU 1: Tesla T4 (UUID: 2)'", "", ["NVIDIA A100", "Tesla T4"]),
        ("echo 'GPU 0: NVIDIA A100 (UUID: GPU-1)'", "-1", []),
        ("echo 'NVIDIA-SMI has failed'; exit 9", "", []),
        (None, "", []),
    ],
)
def test_nvidia_smi_output(
    program: str | None, hidden: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden or "0")
    if program is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    assert gpus_in_machine() == names


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="TensorFlow can use a GPU here")
@pytest.mark.parametrize(("has_cuda", "reason"), [(True, "does not find the CUDA libraries"), (False, "without CUDA")])
def test_warning_for_an_unusable_gpu(has_cuda: bool, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert towers.describe_devices(["CPU:0", "GPU:7"]) == "CPU:0, GPU:7"
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: has_cuda)
    monkeypatch.setattr(towers, "gpus_in_machine", list)
    assert towers.why_no_gpu() is None
    monkeypatch.setattr(towers, "gpus_in_machine", lambda: ["L4", "L4"])
    said = towers.why_no_gpu() or ""
    assert said.startswith("WARNING: there is a GPU (L4 and 1 more), and TensorFlow") and reason in said
    assert said.endswith("pip install 'tensorflow[and-cuda]'")
