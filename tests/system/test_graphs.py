"""The digest of a traced function: of what it computes and does, and not of the order in which its ops were made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import tensorflow as tf

from prototrain.system.graphs import value_digest

NAMES = ("a", "b", "c")
Values = dict[str, Any]
Function = Callable[[Values], Any]
TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4]), 0)
TOTAL = tf.Variable(0)


def digest(function: Function) -> str:
    spec = {name: tf.TensorSpec([], tf.int32) for name in NAMES}
    return value_digest(tf.function(function, autograph=False).get_concrete_function(spec).graph)


def checked(value: Any) -> Any:
    tf.debugging.assert_less(value, 9)
    return value


def in_a_loop(values: Values, names: Iterable[str]) -> Any:
    def body(total: Any) -> list[Any]:
        parts = {name: total * values[name] for name in names}
        return [parts["a"] - parts["b"] + parts["c"]]

    return tf.while_loop(lambda total: total < 9, body, [values["a"]])


def of_a_branch(values: Values, names: Iterable[str]) -> Any:
    def taken() -> Any:
        parts = {name: 2 * values[name] for name in names}
        return parts["a"] - parts["b"] + parts["c"]

    return tf.cond(values["a"] > 1, taken, lambda: values["c"])


def constants(values: Values, names: Iterable[str]) -> Any:
    held = {name: tf.constant([number] * 40) for number, name in enumerate(NAMES)}
    return {name: held[name] * values[name] for name in names}


IN_ANY_ORDER: dict[str, Callable[[Values, Iterable[str]], Any]] = {
    "ops": lambda values, names: {name: values[name] * 2 + 1 for name in names},
    "assertions": lambda values, names: {name: checked(values[name]) for name in names},
    "lookups": lambda values, names: {name: TABLE.lookup(values[name]) for name in names},
    "random numbers of their own seeds": lambda values, names: {
        name: tf.random.stateless_uniform([], [1, values[name]]) for name in names
    },
    "reads of a variable": lambda values, names: {name: values[name] + TOTAL for name in names},
    "constants": constants,
    "a branch": of_a_branch,
    "a loop": in_a_loop,
    "branches": lambda values, names: {
        name: tf.cond(values[name] > 1, lambda name=name: -values[name], lambda: 0) for name in names
    },
}


@pytest.mark.parametrize("make", IN_ANY_ORDER.values(), ids=IN_ANY_ORDER)
def test_the_order_of_independent_ops_does_not_count(make: Callable[[Values, Iterable[str]], Any]) -> None:
    assert digest(lambda values: make(values, NAMES)) == digest(lambda values: make(values, reversed(NAMES)))


def test_what_nothing_comes_of_does_not_count() -> None:
    def wasteful(values: Values) -> Any:
        values["a"] * values["b"]
        return values["c"] + 1

    assert digest(wasteful) == digest(lambda values: values["c"] + 1)


def adds(order: Iterable[str]) -> Function:
    def function(values: Values) -> Any:
        for name in order:
            TOTAL.assign(values[name] * TOTAL)
        return values["a"]

    return function


def calls(order: Iterable[str]) -> Function:
    return lambda values: {name: tf.py_function(lambda x: x, [values["a"]], tf.int32) for name in order}


def prints(*texts: str) -> Function:
    def function(values: Values) -> Any:
        for text in texts:
            tf.print(text)
        return values["a"]

    return function


def looped(factor: int) -> Function:
    return lambda values: tf.while_loop(lambda x: x < values["b"], lambda x: [x * factor], [values["a"]])


def branched(turned: bool) -> Function:
    one, other = ("b", "c") if turned else ("c", "b")
    return lambda values: tf.cond(values["a"] > 1, lambda: values[one], lambda: values[other])


def parts(turned: bool) -> Function:
    def function(values: Values) -> Any:
        left, right = tf.split(tf.stack([values["a"], values["b"]]), 2)
        return right - left if turned else left - right

    return function


CHANGES: dict[str, tuple[Function, Function]] = {
    "which argument": (lambda values: values["a"] - values["b"], lambda values: values["b"] - values["a"]),
    "which output": (lambda v: {"x": v["a"] + 1, "y": v["b"]}, lambda v: {"x": v["b"], "y": v["a"] + 1}),
    "which output of an op": (parts(False), parts(True)),
    "a constant": (lambda values: values["a"] + 1, lambda values: values["a"] + 2),
    "an assertion": (lambda values: values["a"], lambda values: checked(values["a"])),
    "what is printed": (prints("a"), prints("b")),
    "how often it is printed": (prints("a"), prints("a", "a")),
    "the order of changes": (adds("ab"), adds("ba")),
    "whether Python is called once for both": (calls("ab"), lambda v: dict.fromkeys("ab", calls("a")(v)["a"])),
    "which one Python is called for first": (calls("ab"), calls("ba")),
    "a loop": (looped(2), looped(3)),
    "the branches": (branched(False), branched(True)),
    "a read ahead of a change": (
        lambda v: (v["a"] + TOTAL, TOTAL.assign_add(1))[0],
        lambda v: (TOTAL.assign_add(1), v["a"] + TOTAL)[1],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str) -> None:
    before, after = CHANGES[name]
    assert digest(before) == digest(before) != digest(after)


def test_of_what_is_used_from_outside_only_what_stands_for_it_counts() -> None:
    def of(turned: bool, first: str, second: str) -> str:
        held = [tf.constant([float(number)] * 40) for number in range(2)]
        one, other = reversed(held) if turned else held
        graph = tf.function(lambda x: x * one - other).get_concrete_function(tf.TensorSpec([])).graph
        words = {id(held[0]): first, id(held[1]): second}
        return value_digest(graph, {inside.op.name: words[id(outside)] for outside, inside in graph.captures})

    assert of(False, "v", "w") == of(True, "w", "v") != of(True, "v", "w")
