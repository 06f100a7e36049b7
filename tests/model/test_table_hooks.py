"""Lookup tables that `build` makes are made once, by what is in them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from prototrain.model.built import BuiltModel
from tests.tiny import tiny_model


def test_tables_are_made_once_and_told_apart_by_their_contents() -> None:
    made: list[Any] = []

    def build(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        found = []
        for words in (["a", "b"], ["b", "a"]) if train_phase else (["b", "a"],):
            contents = tf.lookup.KeyValueTensorInitializer(words, tf.constant([1.0, 2.0]))
            table = tf.lookup.StaticHashTable(contents, 0.0)
            made.append(table)
            found.append(table.lookup(tf.constant("a")))
        scale = tf.Variable(lambda: tf.ones([]), name="scale")
        return {"loss": tf.reduce_mean(inputs["x"]) * scale * found[0], "of": found[-1]}

    built = BuiltModel(tiny_model(build=build))
    assert made[0] is made[2] and made[1] is made[3] and made[0] is not made[1]
    batch = built.data.first_batch
    assert float(built.build(batch, False)["of"]) == 2.0 and made[-1] is made[1]
