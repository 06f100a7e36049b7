"""The description of a pipeline: the same for the same code and data, another for any change."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from prototrain.data.pipeline import describe_pipeline, description_of, first_difference
from prototrain.data.randomness import unseeded
from tests.tiny import tiny_arrays


def pipeline(*, examples: int = 40, buffer: int = 10, factor: float = 1.5, batch: int = 8, extra: bool = False) -> Any:
    def scale(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {**example, "x": tf.cond(example["y"] > 0, lambda: example["x"] * factor, lambda: example["x"])}

    tf.random.set_seed(1)
    dataset = tf.data.Dataset.from_tensor_slices(tiny_arrays(examples)).shuffle(buffer).map(scale).batch(batch)
    return describe_pipeline(dataset.take(3) if extra else dataset)


def test_the_same_code_gives_the_same_description() -> None:
    assert pipeline() == pipeline()
    assert first_difference(pipeline(), pipeline()) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"examples": 41}, r"TensorSlice\(.*has become"),
        ({"buffer": 11}, r"Shuffle\(10, .* has become Shuffle\(11, "),
        ({"factor": 1.6}, r"Map\(function .* has become Map\(function "),
        ({"batch": 4}, r"Batch\(8, .* has become Batch\(4, "),
        ({"extra": True}, r"Take\(3\) is new"),
    ],
)
def test_any_change_is_named(change: dict[str, Any], words: str) -> None:
    difference = first_difference(pipeline(), pipeline(**change))
    assert difference is not None
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(difference)


def test_a_stage_that_is_gone_is_named() -> None:
    assert first_difference(pipeline(extra=True), pipeline()) == "the pipeline's stage Take(3) is gone"


def test_a_generator_is_described_without_what_counts_up() -> None:
    def one() -> list[str]:
        spec = tf.TensorSpec((), tf.int32)
        return describe_pipeline(tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=spec))

    assert one() == one()


def test_branches_are_described_by_what_they_do() -> None:
    def described(factor: float) -> list[str]:
        def choose(number: tf.Tensor) -> tf.Tensor:
            return tf.switch_case(number % 3, [lambda: number, lambda: number * factor, lambda: -number])

        return describe_pipeline(tf.data.Dataset.range(9).map(lambda number: choose(tf.cast(number, tf.int32))))

    assert described(2) == described(2) != described(3)


def of_names(names: tuple[str, ...]) -> tf.data.Dataset:
    held = {name: tf.constant([number] * 40) for number, name in enumerate("abc")}
    tables = {
        name: tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [number]), 0)
        for number, name in enumerate("abc")
    }
    rows = tf.data.Dataset.from_tensor_slices({name: tf.range(5) for name in "abc"})
    return rows.map(lambda row: {name: held[name] - tables[name].lookup(row[name]) for name in names})


def test_the_order_in_which_python_goes_through_names_does_not_count() -> None:
    one, other = of_names(("a", "b", "c")), of_names(("c", "a", "b"))  # as of a set, in two processes
    assert description_of(one) == description_of(other)
    assert description_of(one, as_made=True) != description_of(other, as_made=True)


def _numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(6)


def test_what_has_no_seed() -> None:
    tf.random.set_seed(1)
    seeded = _numbers().shuffle(3)
    assert not unseeded(seeded)
    tf.random.set_seed(None)
    assert unseeded(_numbers().shuffle(3)) and not unseeded(_numbers().shuffle(3, seed=1))
    assert unseeded(tf.data.Dataset.sample_from_datasets([_numbers(), _numbers()]))
    assert not unseeded(tf.data.Dataset.sample_from_datasets([_numbers(), _numbers()], seed=2))
