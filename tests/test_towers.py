from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from prototrain import towers
from prototrain.errors import ConfigError, ModelError
from prototrain.towers import choose_devices, current_tower, make_cpu_devices, seed_of_tower


@pytest.mark.parametrize(
    ("towers", "devices"),
    [
        (None, ["CPU:0"]),
        (2, ["CPU:0", "CPU:1"]),
        ("cpu:4", ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]),
        (["/device:CPU:2", "cpu:0"], ["CPU:2", "CPU:0"]),
    ],
)
def test_devices(towers: object, devices: list[str]) -> None:
    assert choose_devices(towers) == devices  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("towers", "message"),
    [
        (5, "5 is not between 1 and the 4 CPU device.*cpu:5"),
        ("cpu:8", r"started with 4 CPU device.*make_cpu_devices\(8\)"),
        ("GPU:0", "no device GPU:0; there are CPU:0"),
        ("CPU:1,cpu:1", "named twice"),
    ],
)
def test_wrong_devices(towers: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        choose_devices(towers)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_fewer_devices_and_no_tower_outside_build() -> None:
    make_cpu_devices(2)
    with pytest.raises(ModelError, match="inside a model's build"):
        current_tower()


def test_seeds_differ_between_towers() -> None:
    state = tf.constant([2**32 - 1, 7], tf.int64)
    seeds = [seed_of_tower(state, index).numpy() for index in range(1000)]
    assert seeds[0].tolist() == [2**32 - 1, 7]
    assert len({tuple(seed) for seed in seeds}) == 1000
    assert {int(seed[1]) for seed in seeds} == {7}


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="TensorFlow can use a GPU here")
@pytest.mark.parametrize(("has_cuda", "reason"), [(True, "does not find the CUDA libraries"), (False, "without CUDA")])
def test_warning_for_an_unusable_gpu(
    has_cuda: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert towers.describe_devices(["CPU:0", "GPU:7"]) == "CPU:0, GPU:7"
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: has_cuda)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(towers, "_GPU_FILES", str(tmp_path / "nvidia[0-9]*"))
    (tmp_path / "nvidiactl").touch()
    assert towers.why_no_gpu() is None
    (tmp_path / "nvidia0").touch()
    said = towers.why_no_gpu() or ""
    assert said.startswith("WARNING: there is a GPU, and TensorFlow") and reason in said
    assert said.endswith("pip install 'tensorflow[and-cuda]'")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert towers.why_no_gpu() is None
