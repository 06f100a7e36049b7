"""Whether what is held out is trained on, because both are parts of data that each pass puts in another order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from prototrain.data.pipeline import describe_pipeline
from prototrain.data.randomness import is_ordered_anew, is_shuffle
from prototrain.data.stages import name_of, operations, sources, stages
from prototrain.private_api.datasets import stage_functions, stage_settings
from prototrain.system.graphs import value_digest

Cuts = tuple[tuple[str, ...], ...]
_CUTS = ("_Skip", "_Take", "_Shard")


def mixed_parts(datasets: Mapping[str, tf.data.Dataset], *, is_built_anew: bool) -> list[str]:
    """Say which datasets have examples that are trained on as well, in some pass or other.

    So it is where an order that changes is cut into parts: by `take` and `skip`, `shard`, or a `filter` by number.

    Args:
        datasets: by name, the training data under "trn".
        is_built_anew: whether each pass is built under a seed of its own, so that no order is the same in all of them.
    """
    trained = list(_orders(datasets["trn"]))
    lines = []
    for name, dataset in datasets.items():
        if name == "trn" or dataset is datasets["trn"]:
            continue
        pairs = [(one, other) for one in trained for other in _orders(dataset) if _divide(one[1], other[1])]
        mixing = [one[0] for one, other in pairs if _differ(one[0], other[0], is_built_anew)]
        if mixing:
            once = not is_ordered_anew(mixing[0]) or is_built_anew
            cure = "" if once else ", or shuffle(..., reshuffle_each_iteration=False)"
            lines.append(
                f"WARNING: datasets 'trn' and {name!r} are parts of data that is shuffled in another way for each "
                f"pass, so that examples of {name!r} are trained on; split it before it is shuffled{cure}"
            )
    return lines


def _orders(dataset: Any) -> Iterator[tuple[Any, Cuts]]:
    """The shuffles of a dataset, each with the cuts above it."""

    def visit(stage: Any, cuts: Cuts) -> Iterator[tuple[Any, Cuts]]:
        if is_shuffle(stage) or is_ordered_anew(stage):
            yield stage, cuts
        is_cut = name_of(stage) in _CUTS or (name_of(stage) == "_Filter" and _is_numbered(stage))
        for source in sources(stage):
            yield from visit(source, (*cuts, _settings(stage)) if is_cut else cuts)

    return visit(dataset, ())


def _is_numbered(stage: Any) -> bool:
    """Whether `enumerate` stands right below a stage, with nothing that reads from several places in between."""
    below = sources(stage)
    while len(below) == 1:
        below = sources(below[0])
    return any(name_of(one) in ("_Range", "_Variant") for one in below)  # as `enumerate` hides it


def _settings(stage: Any) -> tuple[str, ...]:
    """What a stage is made with."""
    values = [value for _, value in sorted(stage_settings(stage).items()) if tf.is_tensor(value)]
    digests = [value_digest(function.graph) for function in stage_functions(stage)]
    return (name_of(stage), *(str(tf.get_static_value(value)) for value in values), *digests)


def _divide(one: Cuts, other: Cuts) -> bool:
    """Whether cuts make two parts; not so, for example, where both are only limited in length."""
    return bool(one and other) and any(cut[0] != "_Take" for cut in {*one} ^ {*other})


def _differ(one: Any, other: Any, is_built_anew: bool) -> bool:
    """Whether two shuffles order the same data, not always in the same way."""
    if one is other:
        return is_ordered_anew(one) or is_built_anew
    is_anew = is_built_anew or is_ordered_anew(one) or is_ordered_anew(other)
    if not is_anew and _settings(one) == _settings(other):
        return False
    below = [sources(stage) for stage in (one, other)]
    if not all(below) or any("PyFunc" in op.type for stage in stages(*below[0]) for op in operations(stage)):
        return False  # nobody knows whether Python code gives the same
    described = [[describe_pipeline(source) for source in each] for each in below]
    return described[0] == described[1]
