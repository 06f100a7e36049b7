"""How far ahead of its use data is made."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from prototrain.data.stages import name_of
from prototrain.tf_private import stage_inputs, stage_number

PREFETCH = 2  # batches
_MOST, _MOST_BYTES = 16, 64 * 2**20


def prefetched(dataset: Any, batches: int) -> tf.data.Dataset:
    """Have batches made ahead of their use, if the dataset does not: a second buffer costs as much as the first.

    The buffer of ``prefetch(tf.data.AUTOTUNE)`` at the end is given a length: TensorFlow lets it grow by 2,048 batches
    each time that it was empty once, up to half of the memory, and all of it is in every checkpoint.

    Args:
        dataset: gives batches.
        batches: how many are made ahead; 0 for none but those that the dataset makes ahead itself.
    """
    above, last = [], dataset
    while name_of(last) in ("_Options", "_Repeat") and stage_inputs(last):
        above.append(last)
        (last,) = stage_inputs(last)
    if name_of(last) != "_Prefetch":
        return dataset.prefetch(batches) if batches else dataset
    if stage_number(last, "buffer_size") != tf.data.AUTOTUNE:
        return dataset
    (made,) = stage_inputs(last)
    made = made.prefetch(_buffer_size(last.element_spec))
    for stage in reversed(above):
        count = stage_number(stage, "count")
        if name_of(stage) == "_Repeat" and count is None:
            return dataset
        made = made.repeat(count) if name_of(stage) == "_Repeat" else made.with_options(stage.options())
    return made


def in_blocks(dataset: Any, size: int) -> tf.data.Dataset:
    """Blocks of batches, each stacked from `size` ones (the last of a pass from fewer), one made ahead of its use."""
    return prefetched(dataset, 0).batch(size).prefetch(1)


def _buffer_size(spec: Any) -> int:
    """How many batches of this form to make ahead; few of large ones, and of those whose size is not known."""
    parts = tf.nest.flatten(spec)
    is_known = [isinstance(part, tf.TensorSpec) and part.dtype != tf.string for part in parts]
    counts = [part.shape.num_elements() if known else None for part, known in zip(parts, is_known, strict=True)]
    if None in counts:
        return PREFETCH
    size: int = sum(count * part.dtype.size for count, part in zip(counts, parts, strict=True))
    return max(PREFETCH, min(_MOST, _MOST_BYTES // max(size, 1)))
