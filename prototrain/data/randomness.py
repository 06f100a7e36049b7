"""Which stages of a tf.data pipeline draw random numbers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from prototrain.data.hidden import hidden_nodes, is_hidden_order_anew
from prototrain.data.stages import name_of, operations, stages
from prototrain.data.worth import RANDOM_OPERATIONS
from prototrain.private_api.datasets import has_each_pass_anew, is_seeded
from prototrain.readers.order import order_of


def is_shuffle(stage: Any) -> bool:
    """Whether a stage is a shuffle."""
    return name_of(stage).startswith("_Shuffle")


def has_generator(stage: Any) -> bool:
    """Whether a stage is a shuffle with another order for each reading, which a random generator gives."""
    return is_shuffle(stage) and has_each_pass_anew(stage)


def is_ordered_anew(stage: Any) -> bool:
    """Whether each reading of a stage gives another order, or other numbers."""
    is_rerandomized = name_of(stage) == "_Random" and has_each_pass_anew(stage)
    is_hidden = any(is_hidden_order_anew(node) for node, _ in hidden_nodes(stage))
    return has_generator(stage) or is_rerandomized or order_of(stage) is not None or is_hidden


def has_random_ops(stage: Any) -> bool:
    """Whether the functions of a stage call random ops that go on where they were."""
    return any(op.type in RANDOM_OPERATIONS for op in operations(stage))


def draws_hidden(stage: Any) -> bool:
    """Whether something that is hidden in a stage goes on where it was when the stage is read again."""
    return any(node.op in RANDOM_OPERATIONS or is_hidden_order_anew(node) for node, _ in hidden_nodes(stage))


def draws(stage: Any) -> bool:
    """Whether a stage has a random generator, of its own or in its functions."""
    own = is_ordered_anew(stage) or name_of(stage) == "_Random" or has_random_ops(stage) or draws_hidden(stage)
    return own or any(op.type == "ShuffleDatasetV3" for op in operations(stage))


def shares_generators(one: tf.data.Dataset, other: tf.data.Dataset) -> bool:
    """Whether two datasets are made of the same stages, with a random generator in one of these."""
    known = {id(stage) for stage in stages(other)}
    return any(id(stage) in known and draws(stage) for stage in stages(one))


def reshuffles(dataset: Any) -> bool:
    """Whether each reading of a dataset gives another order."""
    return any(map(is_ordered_anew, stages(dataset)))


def unseeded(dataset: Any) -> bool:
    """Whether a dataset is shuffled, or sampled from others, in another order in every process."""
    drawn = (stage for stage in stages(dataset) if is_shuffle(stage) or name_of(stage) == "_Random")
    return not all(map(is_seeded, drawn))
