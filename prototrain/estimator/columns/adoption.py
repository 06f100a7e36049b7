"""Columns that `tf.feature_column` has made, taken over."""

from __future__ import annotations

from typing import Any

from prototrain.errors import ModelError
from prototrain.estimator.columns.base import Categorical, Column
from prototrain.estimator.columns.dense import Embedded, Indicator
from prototrain.estimator.columns.sequences import SequenceCategorical, SequenceNumeric
from prototrain.estimator.columns.several import Crossed, Weighted
from prototrain.estimator.columns.single import Bucketized, Hashed, Identity, Numeric, Vocabulary


def adopted(column: Any) -> Any:
    """A column of this package; one of `tf.feature_column` is taken over by its fields.

    Raises:
        ModelError: it is neither.
    """
    if isinstance(column, Column):
        return column
    fields: dict[str, Any] = getattr(column, "_asdict", dict)()  # those of TensorFlow are named tuples
    kind = _OF_TENSORFLOW.get(type(column).__name__)
    if not fields or kind is None:
        raise ModelError(
            f"feature_columns: {type(column).__name__} is no column; prototrain.estimator.feature_column makes them"
        )
    known = {name: value for name, value in fields.items() if name in kind.__dataclass_fields__}
    if "vocabulary_file" in fields:
        from prototrain.estimator.feature_column import categorical_column_with_vocabulary_file  # which stands on this

        given = {name: value for name, value in fields.items() if name not in ("num_oov_buckets", "file_format")}
        return categorical_column_with_vocabulary_file(**given, num_oov_buckets=fields["num_oov_buckets"] or 0)
    for name in known.keys() & {"source_column", "categorical_column"}:
        known[name] = adopted(known[name])
    if "keys" in known:
        known["keys"] = tuple(key if isinstance(key, str) else adopted(key) for key in known["keys"])
    return kind(**known)


_OF_TENSORFLOW: dict[str, Any] = {
    "NumericColumn": Numeric,
    "BucketizedColumn": Bucketized,
    "VocabularyListCategoricalColumn": Vocabulary,
    "VocabularyFileCategoricalColumn": Vocabulary,
    "HashedCategoricalColumn": Hashed,
    "IdentityCategoricalColumn": Identity,
    "CrossedColumn": Crossed,
    "WeightedCategoricalColumn": Weighted,
    "SequenceCategoricalColumn": SequenceCategorical,
    "SequenceNumericColumn": SequenceNumeric,
    "IndicatorColumn": Indicator,
    "EmbeddingColumn": Embedded,
}


def categorical(column: Any, who: str, *, of_sequences: bool = False) -> Any:
    """A categorical column, perhaps one of sequences; a ModelError says who asks for one if it is of another kind."""
    found = adopted(column)
    if isinstance(found, Categorical) or (of_sequences and isinstance(found, SequenceCategorical)):
        return found
    raise ModelError(f"{who} takes a categorical column, not {type(found).__name__}")
