"""Weighted, shared and sequence columns give the numbers of `tf.feature_column`, and train in a canned estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as reference

from prototrain import estimator
from prototrain.errors import ModelError
from prototrain.estimator import EstimatorSpec, columns
from prototrain.estimator import feature_column as f

TABLE = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 8.0]], np.float32)
WORDS = tf.sparse.from_dense([["a", "b", ""], ["z", "c", "b"], ["", "", ""], ["a", "a", ""]])
FEATURES = {
    "words": WORDS,
    "others": tf.sparse.from_dense([["c", ""], ["", ""], ["b", ""], ["z", "a"]]),
    "counts": WORDS.with_values([2.0, 0.5, 1.0, -1.0, 3.0, 4.0, 0.25]),
    "steps": tf.sparse.from_dense([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 0, 0], [0, 0, 0, 0], [7.0, 8.0, 9.0, 0]]),
    "ids": tf.sparse.SparseTensor(
        [[0, 0, 0], [0, 0, 1], [0, 1, 0], [2, 2, 1]], np.array([0, 2, 1, 1], np.int64), [4, 3, 2]
    ),
}


class State:
    """Gives columns of TensorFlow their variables."""

    def get_variable(self, column: Any, name: str) -> tf.Tensor:
        return tf.constant(TABLE)

    def get_resource(self, column: Any, name: str) -> None:
        return None

    def has_resource(self, column: Any, name: str) -> bool:
        return False

    def add_resource(self, column: Any, name: str, resource: Any) -> None:
        pass


def both(make: Any) -> tuple[Any, Any]:
    """A column, and that of TensorFlow, which is taken over as the same."""
    mine, theirs = make(f), make(tf.feature_column)
    for column in (mine, columns.adopted(theirs)):
        assert (column.name, column.parse_spec) == (theirs.name, theirs.parse_example_spec)
    return mine, theirs


def table_of(module: Any) -> Any:
    return keras.initializers.Constant(TABLE) if module is f else None


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_weighted_columns(combiner: str) -> None:
    def weighted(m: Any) -> Any:
        words = m.categorical_column_with_vocabulary_list("words", ["a", "b", "c"])
        return m.weighted_categorical_column(words, "counts")

    cache = reference.FeatureTransformationCache(FEATURES)
    for make in (
        lambda m: m.indicator_column(weighted(m)),
        lambda m: m.embedding_column(weighted(m), 2, combiner, table_of(m)),
        lambda m: m.embedding_column(weighted(m), 2, combiner, table_of(m), max_norm=1.0),
    ):
        mine, theirs = both(make)
        expected = theirs.get_dense_tensor(cache, State())
        np.testing.assert_allclose(mine.dense(FEATURES), expected, rtol=1e-6, err_msg=mine.name)
    ids, weights = weighted(f).ids(FEATURES), weighted(f).weights(FEATURES)
    summed = reference._create_categorical_column_weighted_sum(
        weighted(tf.feature_column), cache, State(), combiner, tf.constant(TABLE)
    )
    found = columns.combined(lambda i: tf.gather(TABLE, i), ids, combiner, weights=weights)
    np.testing.assert_allclose(found, summed, rtol=1e-6)


def test_columns_of_sequences() -> None:
    cache = reference.FeatureTransformationCache(FEATURES)
    made = (
        lambda m: m.sequence_numeric_column("steps"),
        lambda m: m.sequence_numeric_column("steps", shape=(2,), default_value=-1.0),
        lambda m: m.indicator_column(m.sequence_categorical_column_with_vocabulary_list("words", ["a", "b", "c"])),
        lambda m: m.embedding_column(
            m.sequence_categorical_column_with_vocabulary_list("words", ["a", "b", "c"]), 2, "mean", table_of(m)
        ),
        lambda m: m.embedding_column(m.sequence_categorical_column_with_identity("ids", 3), 2, "mean", table_of(m)),
        lambda m: m.indicator_column(m.sequence_categorical_column_with_hash_bucket("words", 5)),
    )
    for make in made:
        mine, theirs = both(make)
        numbers, lengths = theirs.get_sequence_dense_tensor(cache, State())
        found, steps = f.sequence_input_layer(FEATURES, [mine])
        np.testing.assert_allclose(found, tf.reshape(numbers, found.shape), rtol=1e-6, err_msg=mine.name)
        np.testing.assert_array_equal(steps, lengths)


def test_one_table_for_several_columns(tmp_path: Path) -> None:
    """In two places of a network, in all modes; and in an estimator with columns of sequences beside it."""
    vocabulary = ["a", "b", "c"]
    pair = [f.categorical_column_with_vocabulary_list(key, vocabulary) for key in ("words", "others")]
    shared = f.shared_embeddings(pair, 2, "sum", table_of(f))
    assert [column.name for column in shared] == ["words_shared_embedding", "others_shared_embedding"]
    lettered = f.sequence_categorical_column_with_vocabulary_list("words", vocabulary)
    steps = f.indicator_column(lettered)

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        words, others = params["columns"]
        net = tf.concat([f.input_layer(features, [words]), f.input_layer(features, [others])], 1)
        numbers, lengths = f.sequence_input_layer(features, [steps])
        net += keras.layers.GRU(4, name="gru")(numbers, mask=tf.sequence_mask(lengths, tf.shape(numbers)[1]))
        loss = None if labels is None else tf.reduce_mean(net**2)
        return EstimatorSpec(mode, {"net": net}, loss, keras.optimizers.SGD(0.1))

    def read() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(({key: FEATURES[key] for key in ("words", "others")}, [0, 1, 0, 1]))

    trained = estimator.Estimator(model_fn, tmp_path, params={"columns": shared}).train(read, steps=1)
    tables = [name for name in trained.get_variable_names() if "embedding" in name]
    assert tables == ["others_words_shared_embedding/embeddings"]
    assert not np.array_equal(trained.get_variable_value(tables[0]), TABLE)
    assert np.shape(next(trained.predict(read))["net"]) == (4,)


CASES: dict[str, Any] = {
    "columns of one size, not others 2, words 3": lambda: f.shared_embeddings(
        [f.categorical_column_with_hash_bucket("words", 3), f.categorical_column_with_hash_bucket("others", 2)], 2
    ),
    "there must be one for each": lambda: f.weighted_categorical_column(
        f.categorical_column_with_hash_bucket("words", 3), "counts"
    ).weights({**FEATURES, "counts": tf.ones([4, 1])}),
    "'words_indicator' is of sequences: feature_column.sequence_input_layer": lambda: f.input_layer(
        FEATURES, [f.indicator_column(f.sequence_categorical_column_with_hash_bucket("words", 3))]
    ),
    "'steps' is of sequences: give it to": lambda: f.input_layer(FEATURES, [f.sequence_numeric_column("steps")]),
    "'words_indicator' is of no sequences": lambda: f.sequence_input_layer(
        FEATURES, [f.indicator_column(f.categorical_column_with_hash_bucket("words", 3))]
    ),
    "cannot take the column 'words'; give it": lambda: f.sequence_input_layer(
        FEATURES, [f.sequence_categorical_column_with_hash_bucket("words", 3)]
    ),
}


@pytest.mark.parametrize("message", CASES)
def test_messages(message: str) -> None:
    with pytest.raises(ModelError, match=message):
        CASES[message]()
