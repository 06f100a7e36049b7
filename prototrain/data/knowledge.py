"""What is known of a tf.data pipeline, put together from what is known of its stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from prototrain.data.chance import drawn_by_chance, drawn_by_several, is_endless
from prototrain.data.hidden import has_hidden_seed, hidden_constant, hidden_nodes
from prototrain.data.randomness import draws_hidden, has_generator, has_random_ops, is_shuffle
from prototrain.data.stages import graphs, name_of, nodes, operations, shown, sources, stages
from prototrain.data.worth import (
    AHEAD_IN_FUNCTIONS,
    DATASETS_IN_FUNCTIONS,
    FIRST_SEEDS,
    HARMLESS_OPTIONS,
    HIDDEN,
    HIDDEN_AND_SAVED,
    IN_PARALLEL,
    IN_WORDS,
    NOT_KNOWN,
    PLAIN,
    RANDOM_OPERATIONS,
    STAGES,
    STATEFUL_OPERATIONS,
    WHY,
    Again,
    Saved,
    Worth,
)
from prototrain.private_api.datasets import (
    cache_file,
    is_declared_unordered,
    is_seeded,
    set_options,
    stage_functions,
    tells_stages,
)
from prototrain.private_api.graphs import is_stateful
from prototrain.readers import is_live
from prototrain.readers.order import order_of
from prototrain.system.resources import LOOKUP, is_changing_table, resource_uses

STATELESS = (
    "draw them with tf.random.stateless_* or tf.image.stateless_random_*, and a seed made of the index that "
    "Dataset.enumerate() gives"
)
REPEATED_ONCE = "call repeat() once, behind what ends it early"
_A_HIDDEN_STAGE = "a hidden stage (what choose_from_datasets() chooses by is one)"
_UNNAMED = "(its name is computed)"


@dataclass(frozen=True)
class Knowledge:
    """What is known of a dataset, from its description alone: the same in every process.

    Attributes:
        not_saved: why a saved position of it is not claimed to be exact, or None.
        not_repeated: why reading it again is not, or None.
        is_python: whether Python code makes the data, so that reading it again is to be checked.
        reshuffles: whether each pass has another order, and a whole state holds the generator of it.
        caches: the files of its `cache(filename)`.
    """

    not_saved: str | None
    not_repeated: str | None
    is_python: bool
    reshuffles: bool
    caches: tuple[str, ...]


def knowledge_of(dataset: tf.data.Dataset) -> Knowledge:
    """Say what is known of a dataset."""
    caches = tuple(file_caches(dataset))
    found = list(_findings(dataset))
    not_saved = max(found, key=lambda finding: finding.worth.saved)
    not_repeated = max(found, key=lambda finding: finding.worth.again)
    saved = not_saved.worth.saved >= Saved.NOT_WHOLE or caches
    return Knowledge(
        not_saved=(_of_caches(caches) or not_saved.why) if saved else _shuffles_apart(dataset),
        not_repeated=not_repeated.why if not_repeated.worth.again >= Again.NO else None,
        is_python=any(finding.worth.again == Again.PYTHON_CODE for finding in found),
        reshuffles=any(map(has_generator, stages(dataset))),
        caches=caches,
    )


class _Finding(NamedTuple):
    worth: Worth
    why: str


def _findings(dataset: tf.data.Dataset) -> Iterator[_Finding]:
    """Everything that the tables say of a dataset; the first of two that are equally bad is the one that is told."""
    yield _Finding(PLAIN, "")
    if not tells_stages():
        # Nobody knows whether it repeats either; so it is checked while it is read again.
        yield _Finding(Worth(Saved.UNKNOWN, Again.PYTHON_CODE), "this TensorFlow does not tell what it is made of")
    yield from _of_options(dataset.options())
    for stage in stages(dataset):
        name = shown(stage)
        if is_live(stage):
            yield _Finding(Worth(Saved.NOT_WHOLE, Again.NO), "it is made while the run goes on (live=True)")
        if name == "Variant":
            yield from _of_hidden(stage)
            continue
        worth = STAGES.get(name_of(stage), NOT_KNOWN)
        if worth == NOT_KNOWN:
            why = f"nothing is known of its stage {name}"
        else:
            why = WHY.get(name_of(stage), f"TensorFlow does not save all of its stage {name}")
        yield _Finding(worth, why)
        if name == "Cache" and cache_file(stage) is None:
            yield _Finding(Worth(Saved.UNKNOWN, Again.YES), "whether it is cached in a file is not known")
        if _may_reorder(stage):
            yield _Finding(Worth(Saved.NOT_WHOLE, Again.NO), f"{name} may give another order (deterministic=False)")
        if worth.again == Again.WITH_A_SEED and not is_seeded(stage):
            yield _Finding(
                Worth(Saved.NOT_WHOLE, Again.NO),
                "it is shuffled without a seed (give shuffle(seed=...), or make it in a function)",
            )
        yield from _of_functions(stage)
    optimized = "experimental_optimization" in set_options(dataset.options())
    shared = drawn_by_several(dataset, optimized)
    if shared is not None:
        yield _Finding(
            Worth(Saved.NOT_WHOLE, Again.NO),
            f"several stages read the same {shared}, some of them ahead: threads decide which one draws its random "
            "numbers first (build it once for each; shuffle() behind rejection_resample())",
        )
    for depth, again in ((0, Again.NO), (1, Again.YES)):  # a pass that is built anew draws from the start
        drawing = None if depth and is_endless(dataset) else drawn_by_chance(dataset, optimized, depth)
        if drawing is not None:
            yield _Finding(
                Worth(Saved.NOT_WHOLE, again),
                f"{_named(drawing)} draws random numbers for what is read ahead, by chance more or less, when a part "
                f"that is repeated is ended early; {_cure(drawing)}",
            )


def _named(stage: Any) -> str:
    if draws_hidden(stage):
        return _A_HIDDEN_STAGE
    return shown(stage) if order_of(stage) is None else 'the order of shuffle="index"'


def _cure(drawing: Any) -> str:
    if draws_hidden(drawing):
        return "leave out the repeat() behind it: the data begins anew by itself"
    return STATELESS if has_random_ops(drawing) else REPEATED_ONCE


def _of_options(options: tf.data.Options) -> Iterator[_Finding]:
    if options.deterministic is False:
        yield _Finding(Worth(Saved.NOT_WHOLE, Again.NO), "its options leave the order open (deterministic=False)")
    for name in set_options(options):
        if name not in HARMLESS_OPTIONS and name != "experimental_external_state_policy":
            yield _Finding(Worth(Saved.UNKNOWN, Again.YES), f"nothing is known of saving it with the option {name}")


def _of_functions(stage: Any) -> Iterator[_Finding]:
    parallel = name_of(stage) in IN_PARALLEL or any(op.type in AHEAD_IN_FUNCTIONS for op in operations(stage))
    for function in stage_functions(stage):
        for tensor in function.captured_inputs:
            if tensor.dtype == tf.variant:
                yield _Finding(NOT_KNOWN, f"the function of {shown(stage)} uses a dataset from outside of it")
        for table, op in resource_uses(function.graph):
            if op.type == LOOKUP and is_changing_table(table, op):
                why = f"the function of {shown(stage)} looks into a table that can change"
                yield _Finding(Worth(Saved.NOT_WHOLE, Again.NO), why)
    for op in operations(stage):
        found = _of_kind(op.type, f"the function of {shown(stage)}", op.op_def is None or op.op_def.is_stateful)
        if found is None:
            continue
        yield found
        if op.type in RANDOM_OPERATIONS and (parallel or not (op.get_attr("seed") or op.get_attr("seed2"))):
            how = "in parallel" if parallel else "without a seed"
            why = f"{shown(stage)} draws random numbers {how}; {STATELESS}"
            yield _Finding(Worth(Saved.NOT_WHOLE, Again.NO), why)
        first = FIRST_SEEDS.get(op.type)
        if first is not None and not any(tf.get_static_value(seed) for seed in op.inputs[first : first + 2]):
            yield _Finding(Worth(Saved.NOT_WHOLE, Again.NO), f"{shown(stage)} shuffles or draws without a seed")


def _of_kind(kind: str, where: str, is_stateful: bool) -> _Finding | None:
    """What the tables say of an op in a function, or in what is hidden; None if there is nothing to say."""
    if "Dataset" not in kind and not is_stateful:
        return None
    worth = (DATASETS_IN_FUNCTIONS if "Dataset" in kind else STATEFUL_OPERATIONS).get(kind, NOT_KNOWN)
    what = IN_WORDS.get(kind, f"runs the op {kind}")
    what += ", of which nothing is known" if worth == NOT_KNOWN and kind not in IN_WORDS else ""
    return _Finding(worth, f"{where} {what}" + (f"; {STATELESS}" if kind in RANDOM_OPERATIONS else ""))


def _of_hidden(stage: Any) -> Iterator[_Finding]:
    where = _A_HIDDEN_STAGE
    found = list(hidden_nodes(stage))
    kinds = {node.op for node, _ in found} - {*HIDDEN}
    if not found:
        yield _Finding(NOT_KNOWN, "nothing is known of a stage that is hidden")
    elif not kinds <= {*HIDDEN_AND_SAVED}:
        yield _Finding(Worth(Saved.NOT_WHOLE, Again.YES), "one of its stages is hidden")
        yield from filter(None, (_of_kind(kind, where, is_stateful(kind)) for kind in sorted(kinds)))
    for node, among in found:
        how = None
        if not has_hidden_seed(node, among):
            how = "is shuffled or drawn without a seed"
        elif node.op in RANDOM_OPERATIONS and not kinds.isdisjoint(AHEAD_IN_FUNCTIONS):
            how = f"draws random numbers in parallel; {STATELESS}"
        elif node.op in RANDOM_OPERATIONS and not (node.attr["seed"].i or node.attr["seed2"].i):
            how = f"draws random numbers without a seed; {STATELESS}"
        elif node.attr["deterministic"].s == b"false":
            how = "may give another order (deterministic=False)"
        if how is not None:
            yield _Finding(Worth(Saved.NOT_WHOLE, Again.NO), f"{where} {how}")


def _may_reorder(stage: Any) -> bool:
    if is_declared_unordered(stage):
        return True
    if name_of(stage) == "_ParallelInterleave":  # which does not say so itself
        made = [node for node in nodes(stage) if node.op.startswith("ParallelInterleaveDataset")]
        return not made or any(node.attr["deterministic"].s == b"false" for node in made)
    with_attribute = (op for op in operations(stage) if "deterministic" in op.node_def.attr)
    return any(op.get_attr("deterministic") == b"false" for op in with_attribute)


def _shuffles_apart(dataset: tf.data.Dataset) -> str | None:
    """Why the shuffles of a dataset are not in each other's or in another stage's way, so that states lack some."""
    number, why = _generators_below(dataset, None)
    if number > 1 or (number and sum(map(is_shuffle, stages(dataset))) > 1):
        return "it is shuffled in several places, and TensorFlow forgets those that have ended"
    return why


def _generators_below(stage: Any, above: str | None) -> tuple[int, str | None]:
    """Count the generators from a stage down, each as often as it is read from.

    Returns:
        their number, and why a state can lack one in the middle of a pass.
    """
    number, why = 0, None
    if has_generator(stage):
        number, why = 1, None if above is None else f"TensorFlow forgets a shuffle below {above} before the pass ends"
    if not STAGES.get(name_of(stage), NOT_KNOWN).holds:
        above = shown(stage)
    for source in sources(stage):
        more, reason = _generators_below(source, above)
        number, why = number + more, why or reason
    return number, why


def repeats_by_itself(stage: Any) -> bool:
    """Whether what a stage makes of an element depends on nothing but that, and comes in the order of the elements."""
    found = [*_of_functions(stage), *_of_options(stage.options())]
    return all(finding.worth.again == Again.YES for finding in found) and not _may_reorder(stage)


def file_caches(dataset: tf.data.Dataset) -> list[str]:
    """The names that a dataset gives to the files of its `cache(filename)`, wherever in it they are; often none."""
    found: set[str] = set()
    for stage in stages(dataset):
        if name_of(stage) == "Cache":
            found.add("" if cache_file(stage) is None else _text(cache_file(stage)))
        for node, among in hidden_nodes(stage):
            if node.op.startswith("CacheDataset"):
                name = hidden_constant(node, 1, among)
                found.add(_UNNAMED if name is None else name.item().decode(errors="replace"))
        for graph in graphs(stage):
            found.update(_text(op.inputs[1]) for op in graph.get_operations() if op.type.startswith("CacheDataset"))
    return sorted(found - {""})  # a cache in memory has an empty name


def _of_caches(caches: tuple[str, ...]) -> str | None:
    # Restored without that file, the iterator would end the whole process.
    return f"it is cached in the file {caches[0]}, which a saved position would need" if caches else None


def _text(tensor: Any) -> str:
    value = tf.get_static_value(tensor)
    return _UNNAMED if value is None else getattr(value, "item", lambda: value)().decode(errors="replace")
