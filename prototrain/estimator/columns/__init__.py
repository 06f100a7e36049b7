"""What feature columns make of the features; `prototrain.estimator.feature_column` has the functions that make them."""

from prototrain.estimator.columns.adoption import adopted, categorical
from prototrain.estimator.columns.base import Categorical, Column, Dense, as_layer_name, check_combiner, combined
from prototrain.estimator.columns.dense import Embedded, Indicator, SharedEmbedded, Table
from prototrain.estimator.columns.layers import input_layer, linear_model, ordered, sequence_input_layer
from prototrain.estimator.columns.sequences import SequenceCategorical, SequenceNumeric
from prototrain.estimator.columns.several import Crossed, Weighted
from prototrain.estimator.columns.single import Bucketized, Hashed, Identity, Numeric, Vocabulary

__all__ = [
    "Bucketized",
    "Categorical",
    "Column",
    "Crossed",
    "Dense",
    "Embedded",
    "Hashed",
    "Identity",
    "Indicator",
    "Numeric",
    "SequenceCategorical",
    "SequenceNumeric",
    "SharedEmbedded",
    "Table",
    "Vocabulary",
    "Weighted",
    "adopted",
    "as_layer_name",
    "categorical",
    "check_combiner",
    "combined",
    "input_layer",
    "linear_model",
    "ordered",
    "sequence_input_layer",
]
