"""Canned estimators: linear models, dense networks, and combinations of both.

The defaults follow `tf.estimator` (``canned/linear.py``, ``dnn.py`` and ``dnn_linear_combined.py`` of
tensorflow/estimator), except where a docstring states otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.estimator.estimator import Estimator
from prototrain.estimator.feature_column import input_layer, linear_model, ordered
from prototrain.estimator.heads import MEAN, BinaryClassHead, Head, MultiClassHead, RegressionHead
from prototrain.estimator.specs import EstimatorSpec, ModeKeys, OptimizerSpec, RunConfig

Columns = Iterable[Any]
Logits = Callable[[Any, str], tf.Tensor]
"""A function from features and mode to logits."""


class Part(NamedTuple):
    """A part of a model, whose variables' names begin with `scope`."""

    scope: str
    logits: Logits
    optimizer: Any
    learning_rate: float  # of an optimizer given by name


class LinearEstimator(Estimator):
    """A linear model with a head.

    Args:
        head: see `prototrain.estimator.heads`.
        feature_columns: see `prototrain.estimator.feature_column`.
        model_dir, config, warm_start_from: see `Estimator`.
        optimizer: a Keras optimizer, an `OptimizerSpec`, a function that returns one of these, or the name of an
            optimizer. An optimizer given by name has a learning rate of min(0.2, 1/sqrt(number of columns)), which is
            the rate of "Ftrl" in tf.estimator.
        sparse_combiner: how to combine the weights of several values of a column: "sum", "mean" or "sqrtn".

    Raises:
        ModelError: there are no columns, or an argument is invalid.
    """

    def __init__(
        self,
        head: Head,
        feature_columns: Columns,
        model_dir: str | Path | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        sparse_combiner: str = "sum",
        warm_start_from: str | Path | None = None,
    ) -> None:
        columns = ordered(feature_columns)
        logits = _linear(columns, head.logits_dimension, sparse_combiner)
        model_fn = _model_fn(head, Part("linear/", logits, optimizer, min(0.2, len(columns) ** -0.5)))
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNEstimator(Estimator):
    """A network of dense layers with a head.

    Args:
        head, feature_columns, model_dir, config, warm_start_from: see `LinearEstimator`. Categorical columns must be
            wrapped in `indicator_column` or `embedding_column`.
        hidden_units: the widths of the hidden layers.
        optimizer: see `LinearEstimator`. An optimizer given by name has a learning rate of 0.05, the rate of "Adagrad"
            in tf.estimator of TensorFlow 1. (TensorFlow 2 used the Keras default of 0.001, which learns almost
            nothing.)
        activation_fn: the activation of the hidden layers.
        dropout: the dropout rate after each hidden layer during training, or None for no dropout.
        batch_norm: whether to apply batch normalization after each hidden layer.

    Raises:
        ModelError: there are no columns, or an argument is invalid.
    """

    def __init__(
        self,
        head: Head,
        hidden_units: Sequence[int],
        feature_columns: Columns,
        model_dir: str | Path | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: str | Path | None = None,
        batch_norm: bool = False,
    ) -> None:
        columns = ordered(feature_columns)
        logits = _network(columns, head.logits_dimension, hidden_units, activation_fn, dropout, batch_norm)
        model_fn = _model_fn(head, Part("dnn/", logits, optimizer, 0.05))
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNLinearCombinedEstimator(Estimator):
    """A linear model and a dense network whose logits are added; each part has its optimizer.

    Args:
        head, model_dir, config, warm_start_from: see `LinearEstimator`.
        linear_feature_columns, linear_sparse_combiner: arguments of the linear part, which is omitted if it has no
            columns; see `LinearEstimator`.
        linear_optimizer: see `LinearEstimator`. An optimizer given by name has a learning rate of
            min(0.005, 1/sqrt(number of columns)), the rate of "Ftrl" in tf.estimator.
        dnn_feature_columns, dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm: arguments of the network,
            which is omitted if it has no columns; see `DNNEstimator`.
        dnn_optimizer: see `LinearEstimator`. An optimizer given by name has a learning rate of 0.001, the rate of
            "Adagrad" in tf.estimator.

    Raises:
        ModelError: there are no columns, or an argument is invalid.
    """

    def __init__(
        self,
        head: Head,
        model_dir: str | Path | None = None,
        linear_feature_columns: Columns | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Columns | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = tf.nn.relu,
        dnn_dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: str | Path | None = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        units, parts = head.logits_dimension, []
        if dnn_feature_columns:
            if not dnn_hidden_units:
                raise ModelError("dnn_feature_columns need dnn_hidden_units, the widths of the layers")
            deep = ordered(dnn_feature_columns)
            logits = _network(deep, units, dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm)
            parts.append(Part("dnn/", logits, dnn_optimizer, 0.001))
        if linear_feature_columns:
            wide = ordered(linear_feature_columns)
            logits = _linear(wide, units, linear_sparse_combiner)
            parts.append(Part("linear/", logits, linear_optimizer, min(0.005, len(wide) ** -0.5)))
        if not parts:
            raise ModelError("give linear_feature_columns, dnn_feature_columns or both")
        super().__init__(_model_fn(head, *parts), model_dir, config, warm_start_from=warm_start_from)


class _Classifier:
    """Mixin that creates a classification head."""

    def __init__(
        self,
        *arguments: Any,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = MEAN,
        **options: Any,
    ) -> None:
        head: Head
        if n_classes == 2:
            head = BinaryClassHead(weight_column, label_vocabulary=label_vocabulary, loss_reduction=loss_reduction)
        else:
            head = MultiClassHead(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(head, *arguments, **options)  # type: ignore[call-arg]


class _Regressor:
    """Mixin that creates a regression head."""

    def __init__(
        self,
        *arguments: Any,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = MEAN,
        **options: Any,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        super().__init__(head, *arguments, **options)  # type: ignore[call-arg]


class LinearClassifier(_Classifier, LinearEstimator):
    """A linear classifier.

    Args:
        feature_columns, model_dir, ...: the arguments of `LinearEstimator` after the head.
        n_classes, weight_column, label_vocabulary, loss_reduction: the arguments of `BinaryClassHead` or
            `MultiClassHead`, keyword-only.
    """


class LinearRegressor(_Regressor, LinearEstimator):
    """A linear regressor.

    Args:
        feature_columns, model_dir, ...: the arguments of `LinearEstimator` after the head.
        label_dimension, weight_column, loss_reduction: the arguments of `RegressionHead`, keyword-only.
    """


class DNNClassifier(_Classifier, DNNEstimator):
    """A dense network for classification, with the arguments of `DNNEstimator` and `LinearClassifier`."""


class DNNRegressor(_Regressor, DNNEstimator):
    """A dense network for regression, with the arguments of `DNNEstimator` and `LinearRegressor`."""


class DNNLinearCombinedClassifier(_Classifier, DNNLinearCombinedEstimator):
    """A linear model and a dense network for classification.

    Takes the arguments of `DNNLinearCombinedEstimator` and `LinearClassifier`.
    """


class DNNLinearCombinedRegressor(_Regressor, DNNLinearCombinedEstimator):
    """A linear model and a dense network for regression.

    Takes the arguments of `DNNLinearCombinedEstimator` and `LinearRegressor`.
    """


def _model_fn(head: Head, *parts: Part) -> Callable[..., EstimatorSpec]:
    """Return a `model_fn` that adds the logits of its parts."""

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        logits = tf.add_n([part.logits(features, mode) for part in parts])
        optimizers = None
        if mode == ModeKeys.TRAIN:
            optimizers = [_optimizer(part, is_alone=len(parts) == 1) for part in parts]
        return head.create_estimator_spec(features, mode, logits, labels, optimizers)

    return model_fn


def _optimizer(part: Part, *, is_alone: bool) -> OptimizerSpec:
    """Return the optimizer of a part's variables, or of all variables of a model that has only this part."""
    given = part.optimizer
    found = given() if callable(given) and not isinstance(given, keras.optimizers.Optimizer) else given
    if isinstance(found, str):
        with suppress(ValueError):  # no such optimizer
            found = keras.optimizers.get({"class_name": found, "config": {"learning_rate": part.learning_rate}})
    if not isinstance(found, keras.optimizers.Optimizer | OptimizerSpec):
        expected = "a Keras optimizer or the name of one, or an OptimizerSpec"
        raise ModelError(f"optimizer must be {expected}, not {found!r} (n_classes and the like are keyword arguments)")
    spec = found if isinstance(found, OptimizerSpec) else OptimizerSpec(found)
    return replace(spec, variables=spec.variables or (None if is_alone else part.scope))


def _linear(columns: list[Any], units: int, combiner: str) -> Logits:
    if combiner not in (combiners := ("mean", "sqrtn", "sum")):
        raise ModelError(f"there is no combiner {combiner!r}; there are {', '.join(combiners)}")

    def logits(features: Any, mode: str) -> tf.Tensor:
        with tf.name_scope("linear"):
            return linear_model(features, columns, units, combiner)

    return logits


def _network(
    columns: list[Any], units: int, hidden_units: Sequence[int], activation_fn: Any, dropout: Any, batch_norm: bool
) -> Logits:
    def logits(features: Any, mode: str) -> tf.Tensor:
        training = mode == ModeKeys.TRAIN
        with tf.name_scope("dnn"):
            net = input_layer(features, columns)
            for number, width in enumerate(hidden_units):
                net = keras.layers.Dense(width, activation=activation_fn, name=f"hiddenlayer_{number}")(net)
                if dropout is not None:
                    net = keras.layers.Dropout(dropout, name=f"dropout_{number}")(net, training=training)
                if batch_norm:
                    layer = keras.layers.BatchNormalization(momentum=0.999, name=f"batchnorm_{number}")
                    net = layer(net, training=training)
            return keras.layers.Dense(units, name="logits")(net)

    return logits
