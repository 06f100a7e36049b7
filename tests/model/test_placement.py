"""The mean over towers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.model import placement
from prototrain.model.placement import Placement


def test_mean_of_tensors_of_all_shapes_and_dtypes(monkeypatch: Any) -> None:
    monkeypatch.setattr(placement, "PACKED_ELEMENTS", 6)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    towers = Placement(strategy, combines_by_copies=True)
    assert towers.may_fail and not Placement(strategy).may_fail
    given = [
        tf.constant([[1.0, 2.0], [3.0, 4.0]]),  # small
        tf.constant([1.0, 2.0], tf.float64),  # the only small one of its kind
        tf.range(12.0),  # large
        tf.constant(5.0),  # small
        tf.zeros([0]),
        tf.zeros([0], tf.float16),  # the only one of this kind
        tf.IndexedSlices(tf.ones([2, 3]), tf.constant([1, 0]), tf.constant([4, 3])),
    ]

    @tf.function
    def means() -> Any:
        def tower(_: Any) -> Any:
            context = tf.distribute.get_replica_context()
            scale = tf.cast(context.replica_id_in_sync_group, tf.float32) * 2 + 1  # 1 and 3: 2 in the middle
            scaled = [tf.nest.map_structure(lambda one: one * tf.cast(scale, one.dtype), one) for one in given[:-1]]
            sparse = tf.IndexedSlices(given[-1].values * scale, given[-1].indices, given[-1].dense_shape)
            found = towers.mean([*scaled, sparse])
            return [*found[:-1], tf.convert_to_tensor(found[-1])]

        return [towers.local_results(one) for one in towers.run(tower, {"x": tf.zeros([2])})]

    for (first, second), expected in zip(means(), given, strict=True):
        np.testing.assert_array_equal(first, tf.convert_to_tensor(expected) * 2)
        np.testing.assert_array_equal(first, second)
