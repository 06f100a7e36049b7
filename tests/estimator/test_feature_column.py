from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as reference

from prototrain.errors import ModelError
from prototrain.estimator import feature_column
from prototrain.estimator.feature_column import _combined

FEATURES = {
    "age": tf.constant([10.0, 20.0, 25.5, 60.0]),
    "word": tf.constant(["a", "", "z", "c"]),
    "number": tf.constant([1, -1, 7, 3]),
    "words": tf.constant([["a", "b"], ["b", "b"], ["", "c"], ["", ""]]),
    "pair": tf.constant([[1.0, 2.0], [3.0, 4.0], [0.0, 7.0], [9.0, 9.0]]),
}


def made_by(module: Any, file: Path) -> list[Any]:
    """Create the same columns with either module."""
    m = module
    bucketized = m.bucketized_column(m.numeric_column("age"), [20, 30, 50])
    pair = m.numeric_column("pair", shape=(2,), normalizer_fn=lambda numbers: numbers * 2)
    pairs = m.bucketized_column(pair, [2, 8])
    word = m.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
    words = m.categorical_column_with_vocabulary_list("words", ["a", "b", "c"])
    identity = m.categorical_column_with_identity("number", 5, default_value=0)
    crossed = m.crossed_column([bucketized, "word"], 13)
    categorical = [
        *(word, words, identity, bucketized, pairs, crossed),
        m.categorical_column_with_vocabulary_list("word", ["a", "b", "c"], num_oov_buckets=4),
        m.categorical_column_with_vocabulary_list("word", ["a", "b", "c"], default_value=2),
        m.categorical_column_with_vocabulary_list("number", [1, 3, 5], num_oov_buckets=3),
        m.categorical_column_with_vocabulary_file("word", str(file), 2),
        m.categorical_column_with_hash_bucket("word", 11),
        m.categorical_column_with_hash_bucket("number", 11, dtype=tf.int64),
        m.crossed_column(["words", "word", identity], 17),
        m.crossed_column([pairs, words], 19, hash_key=5),
    ]
    return [m.numeric_column("age"), pair, bucketized, pairs, *map(m.indicator_column, categorical)]


def test_columns_equal_tensorflow(tmp_path: Path) -> None:
    file = tmp_path / "words"
    file.write_text("a\nb\nc\n")
    for mine, theirs in zip(made_by(feature_column, file), made_by(tf.feature_column, file), strict=True):
        cache = reference.FeatureTransformationCache(FEATURES)
        expected = theirs.get_dense_tensor(cache, None).numpy().reshape(4, -1)
        np.testing.assert_array_equal(mine.dense(FEATURES), expected, err_msg=theirs.name)
        assert (mine.name, mine.parse_spec) == (theirs.name, theirs.parse_example_spec)


@pytest.mark.parametrize("text", ["a\u2028b\nc\x0bd\ne", "a\r\nb\r\n"])
def test_vocabulary_files_are_read_as_by_tensorflow(tmp_path: Path, text: str) -> None:
    file = tmp_path / "words"
    file.write_bytes(text.encode())
    words = text.replace("\r", "").removesuffix("\n").split("\n")
    features = {"word": tf.constant([[word] for word in words])}
    expected = tf.lookup.StaticVocabularyTable(
        tf.lookup.TextFileInitializer(
            str(file), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
        ),
        1,
    ).lookup(features["word"])
    column = feature_column.categorical_column_with_vocabulary_file("word", file)
    np.testing.assert_array_equal(column.ids(features), expected)


def test_sparse_and_empty_features() -> None:
    words = FEATURES["words"]
    column = feature_column.categorical_column_with_vocabulary_list("words", ["a", "b", "c"])
    expected = [[1, 1, 0], [0, 2, 0], [0, 0, 1], [0, 0, 0]]
    ragged = tf.ragged.constant([["a", "b"], ["b", "b"], ["c"], []])
    for given in (words, tf.sparse.from_dense(words), ragged):
        np.testing.assert_array_equal(feature_column.indicator_column(column).dense({"words": given}), expected)

    # In a sparse feature, an empty string is a word.
    explicit = tf.SparseTensor([[0, 0], [1, 0], [2, 0]], ["a", "", "b"], [4, 2])
    word = tf.sparse.from_dense(FEATURES["word"])
    for make in (
        lambda module: module.categorical_column_with_vocabulary_list("words", ["a", "b"], num_oov_buckets=2),
        lambda module: module.crossed_column(["words", "word"], 17),
    ):
        features = {"words": explicit, "word": word}
        cache = reference.FeatureTransformationCache(features)
        theirs = tf.feature_column.indicator_column(make(tf.feature_column)).get_dense_tensor(cache, None)
        mine = feature_column.indicator_column(make(feature_column)).dense(features)
        np.testing.assert_array_equal(mine, tf.reshape(theirs, mine.shape))
    layer: Any = lambda ids: tf.gather(tf.constant([[3.0, 4.0], [6.0, 8.0], [1.0, 0.0]]), ids)  # noqa: E731
    ids = column.ids(FEATURES)
    sums = [[9, 12], [12, 16], [1, 0], [0, 0]]
    np.testing.assert_allclose(_combined(layer, ids, "sum"), sums)
    np.testing.assert_allclose(_combined(layer, ids, "mean")[:2], [[4.5, 6], [6, 8]])
    np.testing.assert_allclose(_combined(layer, ids, "sqrtn")[1], np.array([12, 16]) / 2**0.5, rtol=1e-6)
    np.testing.assert_allclose(_combined(layer, ids, "sum", 5.0)[1], [6, 8], rtol=1e-6)


f = feature_column
HASHED: Any = f.categorical_column_with_hash_bucket("word", 3)
CASES: dict[str, Any] = {
    "no feature 'x' for its column; input_fn gives age, word": lambda: f.numeric_column("x").dense(FEATURES),
    r"numeric_column\('x'\): the feature is sparse or ragged": lambda: f.numeric_column("x").dense(
        {"x": tf.ragged.constant([[1.0], [2.0, 3.0]])}
    ),
    r"numeric_column\('x'\): an example has shape \(3,\)": lambda: f.numeric_column("x").dense({"x": tf.ones([2, 3])}),
    r"numeric_column\('word'\): the feature is text": lambda: f.numeric_column("word").dense(FEATURES),
    "takes a numeric_column, not Hashed": lambda: f.bucketized_column(HASHED, [1]),
    "'word' is categorical: a network of layers": lambda: f.input_layer(FEATURES, [HASHED]),
    "read the feature 'age' in different ways": lambda: f.make_parse_example_spec(
        [f.numeric_column("age"), f.numeric_column("age", shape=2)]
    ),
}


def test_messages() -> None:
    for message, wrong in CASES.items():
        with pytest.raises(ModelError, match=message):
            wrong()


def test_identity_column_out_of_range() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="number has values outside of 0 to 2"):
        feature_column.categorical_column_with_identity("number", 3).ids(FEATURES)
