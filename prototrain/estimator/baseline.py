"""Ready-made estimators that look at the labels alone: what a model has to be better than."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.estimator.base_head import Head
from prototrain.estimator.canned import Start, chosen_optimizer, class_head
from prototrain.estimator.estimator import Estimator
from prototrain.estimator.heads import RegressionHead
from prototrain.estimator.specs import EstimatorSpec, ModeKeys, RunConfig


class BaselineEstimator(Estimator):
    """The same logits for all examples, whatever their features: it learns how frequent the labels are.

    Args:
        head: see `prototrain.estimator.heads`.
        model_dir, config, warm_start_from: see `Estimator`.
        optimizer: see `LinearEstimator`; one that is given by its name has a learning rate of 0.3.
    """

    def __init__(
        self,
        head: Head,
        model_dir: str | Path | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: Start = None,
    ) -> None:
        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            with tf.name_scope("baseline"):
                bias = tf.Variable(lambda: tf.zeros([head.logits_dimension]), name="bias")
            logits = tf.tile(bias[tf.newaxis], [_examples(features), 1])
            chosen = chosen_optimizer(optimizer, 0.3) if mode == ModeKeys.TRAIN else None
            return head.create_estimator_spec(features, mode, logits, labels, chosen)

        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class BaselineClassifier(BaselineEstimator):
    """The share of each class in the labels; for the arguments see `BaselineEstimator` and `BinaryClassHead`."""

    def __init__(
        self,
        model_dir: str | Path | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: Any = "sum_over_batch_size",
    ) -> None:
        head = class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(head, model_dir, optimizer, config)


class BaselineRegressor(BaselineEstimator):
    """The mean of the labels; for the arguments see `BaselineEstimator` and `RegressionHead`."""

    def __init__(
        self,
        model_dir: str | Path | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: Any = "sum_over_batch_size",
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        super().__init__(head, model_dir, optimizer, config)


def _examples(features: Any) -> tf.Tensor:
    """How many examples there are."""
    leaves = keras.tree.flatten(features)
    if not leaves:
        raise ModelError("a Baseline estimator needs some feature, to know how many examples there are")
    first = leaves[0]
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    return tf.cast(first.nrows(), tf.int32) if isinstance(first, tf.RaggedTensor) else tf.shape(first)[0]
