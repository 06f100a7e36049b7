from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from prototrain.data.batches import first_part, split_batch
from prototrain.errors import ConfigError, ModelError
from prototrain.towers import choose_devices, components, current_tower, make_cpu_devices, seed_of_tower


@pytest.mark.parametrize(
    ("towers", "devices"),
    [
        (None, ["CPU:0"]),
        (1, ["CPU:0"]),
        (2, ["CPU:0", "CPU:1"]),
        ("3", ["CPU:0", "CPU:1", "CPU:2"]),
        ("cpu:4", ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]),
        ("CPU:0", ["CPU:0"]),
        ("cpu:1,CPU:3", ["CPU:1", "CPU:3"]),
        (["/device:CPU:2", "cpu:0"], ["CPU:2", "CPU:0"]),
    ],
)
def test_devices(towers: object, devices: list[str]) -> None:
    assert choose_devices(towers) == devices  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("towers", "message"),
    [
        (0, "at least 1"),
        (5, "5 are more than the 4 CPU device.*cpu:5"),
        ("cpu:100000", "cpu:100000 is too many; at most 256 logical CPU devices are made"),
        ("cpu:8", "started with 4 CPU devices.*make_cpu_devices\\(8\\)"),
        ("two", "'two' is not a device"),
        ("GPU:0", "no device GPU:0; there are CPU:0"),
        ("CPU:0,CPU:7", "no device CPU:7"),
        ("CPU:1,cpu:1", "named twice"),
        ("", "'' is not a device"),
    ],
)
def test_wrong_devices(towers: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        choose_devices(towers)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_fewer_cpu_devices_than_there_are_is_fine() -> None:
    make_cpu_devices(2)


def test_the_current_tower_is_known_in_build_only() -> None:
    with pytest.raises(ModelError, match="inside a model's build"):
        current_tower()


def test_components() -> None:
    plain = tf.Variable(1.0)
    assert components(plain) == [plain]
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        assert [copy.device[-5:] for copy in components(tf.Variable(1.0))] == ["CPU:0", "CPU:1"]


def test_seeds_of_towers_differ() -> None:
    state = np.array([2**32 - 1, 7], dtype=np.uint32)
    seeds = [seed_of_tower(state, index) for index in range(1000)]
    assert (seeds[0] == state).all()
    assert len({tuple(seed) for seed in seeds}) == 1000
    assert {int(seed[1]) for seed in seeds} == {7}


class TestBatches:
    batch = {  # noqa: RUF012
        "dense": tf.reshape(tf.range(12), [6, 2]),
        "ragged": tf.ragged.constant([[1], [], [2, 3], [4], [5], [6, 7, 8]]),
        "sparse": tf.sparse.from_dense(tf.eye(6)),
        "scalar": tf.constant(3.0),
    }

    def dense(self, value: object) -> list[object]:
        if isinstance(value, tf.SparseTensor):
            value = tf.sparse.to_dense(value)
        return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()  # type: ignore

    @pytest.mark.parametrize("parts", [1, 2, 3])
    def test_parts_add_up(self, parts: int) -> None:
        divided = split_batch(self.batch, parts)
        assert len(divided) == parts
        for name in ("dense", "ragged", "sparse"):
            together = [row for part in divided for row in self.dense(part[name])]
            assert together == self.dense(self.batch[name])
        assert all(part["scalar"] == 3.0 for part in divided)
        first = first_part(self.batch, parts)
        assert all(self.dense(first[name]) == self.dense(divided[0][name]) for name in self.batch)

    @pytest.mark.parametrize("name", ["dense", "ragged"])
    def test_an_uneven_split_is_an_error(self, name: str) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="does not divide evenly into 4 parts"):
            split_batch({name: self.batch[name]}, 4)

    def test_the_first_part_of_a_small_batch_is_not_empty(self) -> None:
        assert first_part({"x": tf.ones([2, 3])}, 4)["x"].shape == (1, 3)
