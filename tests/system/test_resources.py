"""Resources that a traced graph uses and that are no variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from prototrain.system.resources import table_digest


def table(words: list[str], numbers: list[int]) -> Any:
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words, tf.constant(numbers, tf.int64)), -1)


def digest(*tables: Any) -> str | None:
    @tf.function
    def looks_up(word: Any) -> Any:
        return [each.lookup(word) for each in tables]

    return table_digest([looks_up.get_concrete_function(tf.TensorSpec([], tf.string)).graph])


def test_the_entries_of_tables_count_in_any_order() -> None:
    known = digest(table(["a", "b"], [1, 2]))
    assert known is not None
    assert known == digest(table(["b", "a"], [2, 1]))
    assert known != digest(table(["a", "b"], [1, 3]))
    assert known != digest(table(["a", "c"], [1, 2]))


def test_which_of_several_tables_is_asked_for_what_counts() -> None:
    one, other = table(["a"], [1]), table(["a"], [2])
    asked = digest(one, other)
    assert asked == digest(table(["a"], [1]), other) != digest(other, one)

    @tf.function
    def looks_up(word: Any) -> Any:
        second = other.lookup(word)
        return [one.lookup(word), second]

    assert table_digest([looks_up.get_concrete_function(tf.TensorSpec([], tf.string)).graph]) == asked


def test_a_table_that_can_change_does_not_count() -> None:
    assert digest(tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)) is None
    assert digest() is None
