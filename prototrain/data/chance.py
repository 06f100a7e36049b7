"""Where threads decide which random numbers a tf.data pipeline draws, seeds or not."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from prototrain.data.randomness import draws, draws_hidden, has_random_ops, is_ordered_anew
from prototrain.data.stages import name_of, operations, shown, sources
from prototrain.data.worth import AHEAD, ENDS_EARLY, PASSED_OVER
from prototrain.private_api.datasets import stage_number


def drawn_by_chance(stage: Any, ahead: bool, depth: int) -> Any | None:
    """A stage that draws random numbers for batches that are given up: how many, threads decide.

    A random op, or a shuffle, goes on where it was when what it belongs to is read again. So from the end of the data
    down: a repeat, below that a stage that ends before what it reads from, and below that one that reads ahead. A
    shuffle draws once for each reading, so between it and these is one more repeat.

    Args:
        stage: where to look, and below.
        ahead: whether any stage may read ahead, because TensorFlow was told to make some parallel.
        depth: how many of these are above; 1 where all of the data is repeated by who reads it.
    """
    depth = 3 if depth == 2 and ahead else depth
    if (depth >= 3 and has_random_ops(stage)) or (depth == 4 and is_ordered_anew(stage)):
        return stage
    if depth >= 2 and draws_hidden(stage):  # behind what reads ahead, for all that is known
        return stage
    name = name_of(stage)
    depth += (
        (depth in (0, 3) and name == "_Repeat")
        or (depth == 1 and name in ENDS_EARLY and not is_endless(stage))
        or (depth == 2 and _reads_ahead(stage))
    )
    found = (drawn_by_chance(source, ahead, depth) for source in sources(stage))
    return next((one for one in found if one is not None), None)


def drawn_by_several(dataset: Any, ahead: bool) -> str | None:
    """The name of a stage with a random generator that is read in several places, in one of them ahead.

    Args:
        dataset: where to look.
        ahead: whether any stage may read ahead, because TensorFlow was told to make some parallel.
    """
    fork = dataset
    while len(sources(fork)) == 1:  # what reads ahead of all places leaves their order as it is
        (fork,) = sources(fork)
    found: dict[int, list[bool]] = {}
    known: dict[int, Any] = {}

    def visit(stage: Any, ahead: bool) -> None:
        known[id(stage)] = stage
        found.setdefault(id(stage), []).append(ahead)
        for source in sources(stage):
            visit(source, ahead or _reads_ahead(stage))

    visit(fork, ahead)
    several = (known[key] for key, places in found.items() if len(places) > 1 and any(places))
    return next((shown(stage) for stage in several if draws(stage)), None)


def _reads_ahead(stage: Any) -> bool:
    """Whether a stage may read more than it has given, in a thread of its own.

    TensorFlow makes a `map` parallel whose function has no state, and one stage of a `map` and the `batch` behind it
    (its optimizations `map_parallelization` and `map_and_batch_fusion`, unless they are turned off).
    """
    if name_of(stage) == "_Map":
        return not any(op.op_def is None or op.op_def.is_stateful for op in operations(stage))
    if name_of(stage) == "_Batch":
        below = sources(stage)
        while below and name_of(below[0]) in PASSED_OVER:
            below = sources(below[0])
        return bool(below) and name_of(below[0]) == "_Map"
    return name_of(stage) in AHEAD


def is_endless(dataset: Any) -> bool:
    """Whether it is known that a dataset has no end.

    TensorFlow says so of what is chosen or sampled from datasets as soon as one of these has none, although it ends
    with the choices, or with another one.
    """
    if dataset.cardinality() != tf.data.INFINITE_CARDINALITY or name_of(dataset) == "_DirectedInterleave":
        return False
    if name_of(dataset) == "_Repeat" and stage_number(dataset, "count") == -1:
        return True
    return all(is_endless(one) for one in sources(dataset) if one.cardinality() == tf.data.INFINITE_CARDINALITY)
