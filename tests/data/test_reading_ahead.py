"""How many batches are made ahead."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from prototrain.data.positions import PREFETCH, prefetched
from prototrain.tf_private import stage_inputs, stage_number
from prototrain.tf_private import stage_name as name_of

NUMBERS = tf.data.Dataset.range(3)


@pytest.mark.parametrize("dataset", [NUMBERS, NUMBERS.prefetch(1).batch(2), NUMBERS.prefetch(1)])
def test_batches_are_made_ahead_once(dataset: Any) -> None:
    assert (prefetched(dataset, 2) is dataset) == (name_of(dataset) == "_Prefetch")


@pytest.mark.parametrize("dataset", [NUMBERS.prefetch(tf.data.AUTOTUNE), NUMBERS.prefetch(tf.data.AUTOTUNE).repeat()])
def test_a_buffer_that_would_grow_has_a_length(dataset: Any) -> None:
    found: Any = prefetched(dataset, 2)
    assert found.cardinality() == dataset.cardinality()
    while name_of(found) != "_Prefetch":
        (found,) = stage_inputs(found)
    assert stage_number(found, "buffer_size") == PREFETCH
