from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import SimpleTrainer
from prototrain.errors import ModelError
from prototrain.estimator import feature_column as f
from prototrain.estimator.feature_column import linear_model
from tests.tiny import tiny_model

FEATURES = {
    "age": tf.constant([10.0, 20.0, 25.5, 60.0]),
    "word": tf.constant(["a", "", "z", "c"]),
    "number": tf.constant([1, -1, 7, 3]),
    "words": tf.constant([["a", "b"], ["b", "b"], ["", "c"], ["", ""]]),
    "pair": tf.constant([[1.0, 2.0], [3.0, 4.0], [0.0, 7.0], [9.0, 9.0]]),
}
AGE, WORD = f.numeric_column("age"), f.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
WORDS = f.categorical_column_with_vocabulary_list("words", ["a", "b", "c"])
COUNTS = [[1, 1, 0], [0, 2, 0], [0, 0, 1], [0, 0, 0]]


def test_columns_in_the_order_of_their_names() -> None:
    pair = f.numeric_column("pair", shape=(2,), normalizer_fn=lambda numbers: numbers * 2)
    found = f.input_layer(FEATURES, [f.indicator_column(WORDS), pair, AGE, f.bucketized_column(AGE, [20, 30])])
    buckets = np.eye(3)[[0, 1, 1, 2]]
    expected = [FEATURES["age"][:, tf.newaxis], buckets, FEATURES["pair"] * 2, COUNTS]
    np.testing.assert_array_equal(found, np.concatenate(expected, 1))


def test_sparse_and_ragged_features() -> None:
    ragged = tf.ragged.constant([["a", "b"], ["b", "b"], ["c"], []])
    for given in (FEATURES["words"], tf.sparse.from_dense(FEATURES["words"]), ragged):
        np.testing.assert_array_equal(f.input_layer({"words": given}, f.indicator_column(WORDS)), COUNTS)


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_variables_and_tables_are_those_of_the_first_call(combiner: str, tmp_path: Path) -> None:
    """A linear model and an embedding, trained for a step, against sums by hand."""
    (tmp_path / "words").write_text("a\nb\nc\n")
    of_file = f.categorical_column_with_vocabulary_file("words", str(tmp_path / "words"))
    ones = tf.keras.initializers.Ones()
    embedding = f.embedding_column(WORDS, 2, combiner=combiner, initializer=ones)
    weighted = f.weighted_categorical_column(of_file, "scales")
    features = {**FEATURES, "scales": tf.constant([[1.0, 2.0], [1.0, 1.0], [0.0, 3.0], [0.0, 0.0]])}

    def build(inputs: Any, train_phase: bool) -> dict[str, Any]:
        wide = linear_model(inputs, [AGE, weighted, f.bucketized_column(AGE, [20, 30])], 1, combiner)
        return {"wide": wide, "deep": f.input_layer(inputs, [embedding]), "loss": tf.reduce_sum(wide)}

    data = tf.data.Dataset.from_tensors(features).repeat()
    model = tiny_model(build=build, datasets=lambda: {"trn": data}, model__batch_size=4)
    trainer = SimpleTrainer(model)
    assert {name: variable.shape.as_list() for name, variable in trainer.variables.items()} == {
        "bias_weights": [1],
        "age/kernel": [1, 1],
        "age_bucketized/embeddings": [3, 1],
        "words_weighted_by_scales/embeddings": [3, 1],
        "words_embedding/embeddings": [3, 2],
    }
    for name, value in {"age/kernel": [[0.1]], "age_bucketized/embeddings": [[1.0], [2.0], [3.0]]}.items():
        trainer.variables[name].assign(value)
    trainer.variables["words_weighted_by_scales/embeddings"].assign([[1.0], [10.0], [100.0]])
    wide, deep = trainer.get_predictor(list(features), ["wide", "deep"])(*features.values())
    counts = {"sum": [2, 2, 1, 0], "mean": [1, 1, 1, 0]}[combiner]
    np.testing.assert_allclose(deep, np.transpose([counts, counts]))
    of_words = {"sum": [21.0, 20.0, 300.0, 0.0], "mean": [7.0, 10.0, 100.0, 0.0]}[combiner]
    np.testing.assert_allclose(wide[:, 0], np.add(of_words, [1 + 1, 2 + 2, 2 + 2.55, 3 + 6]), rtol=1e-6)


WRONG: dict[str, Any] = {
    "Feature x is not in features": lambda: f.input_layer(FEATURES, f.numeric_column("x")),
    "need features by name": lambda: f.input_layer(tf.ones([2, 3]), AGE),
    "'word' is categorical: a network of layers": lambda: f.input_layer(FEATURES, [WORD]),
    "an example has shape .*3.*, not .1": lambda: f.input_layer({"age": tf.ones([2, 3])}, AGE),
    "Cast string to float": lambda: f.input_layer(FEATURES, f.numeric_column("word")),
    "ckpt_to_load_from has no effect": lambda: f.input_layer(
        FEATURES, f.embedding_column(WORD, 2, ckpt_to_load_from="x", tensor_name_in_ckpt="y")
    ),
    "str is not a feature column": lambda: f.input_layer(FEATURES, ["age"]),
    "two columns 'age'": lambda: f.input_layer(FEATURES, [AGE, AGE]),
}


def test_messages() -> None:
    for message, wrong in WRONG.items():
        with pytest.raises(ModelError, match=message):
            wrong()
