"""Ready-made estimators: linear models, networks of dense layers, both together, and what only looks at the labels.

Their defaults are those of `tf.estimator` (``canned/linear.py``, ``dnn.py`` and ``dnn_linear_combined.py`` of
tensorflow/estimator).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.estimator.base_head import Head
from prototrain.estimator.columns.base import check_combiner
from prototrain.estimator.columns.layers import input_layer, linear_model, ordered
from prototrain.estimator.estimator import Estimator
from prototrain.estimator.heads import BinaryClassHead, MultiClassHead, RegressionHead
from prototrain.estimator.specs import EstimatorSpec, ModeKeys, OptimizerSpec, RunConfig, WarmStartSettings

Columns = Iterable[Any]
Start = str | Path | WarmStartSettings | None
_MEAN = "sum_over_batch_size"
_OPTIMIZERS = ("Adagrad", "Adam", "Ftrl", "RMSprop", "SGD")


class LinearEstimator(Estimator):
    """A weighted sum of the columns, and a head.

    Args:
        head: see `prototrain.estimator.heads`.
        feature_columns: see `prototrain.estimator.feature_column`.
        model_dir, config, warm_start_from: see `Estimator`.
        optimizer: a Keras optimizer, an `OptimizerSpec`, a function that returns one of these, or the name of an
            optimizer; "Ftrl" has a learning rate of min(0.2, 1/sqrt(number of columns)) as in tf.estimator.
        sparse_combiner: how the weights of several values of one column are put together: "sum", "mean" or "sqrtn".

    Raises:
        ModelError: there are no columns, or an argument is out of its range.
    """

    def __init__(
        self,
        head: Head,
        feature_columns: Columns,
        model_dir: str | Path | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        sparse_combiner: str = "sum",
        warm_start_from: Start = None,
    ) -> None:
        check_combiner(sparse_combiner)
        columns = ordered(feature_columns)
        rate = min(0.2, len(columns) ** -0.5)

        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            with tf.name_scope("linear"):
                logits = linear_model(features, columns, head.logits_dimension, sparse_combiner)
            chosen = chosen_optimizer(optimizer, rate) if mode == ModeKeys.TRAIN else None
            return head.create_estimator_spec(features, mode, logits, labels, chosen)

        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNEstimator(Estimator):
    """A network of dense layers on the columns, and a head.

    Args:
        head, feature_columns, model_dir, config, warm_start_from: see `LinearEstimator`; categorical columns must be
            wrapped by `indicator_column` or `embedding_column`.
        hidden_units: the widths of the layers.
        optimizer: see `LinearEstimator`; "Adagrad" has a learning rate of 0.05, which is that of tf.estimator in
            TensorFlow 1. (In TensorFlow 2 it took that of Keras, 0.001, where nearly nothing is learned.)
        activation_fn: of the layers.
        dropout: the part of the values that are left out behind each layer while training; None for none.
        batch_norm: whether the values behind each layer are normalised.

    Raises:
        ModelError: there are no columns, or an argument is out of its range.
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
        warm_start_from: Start = None,
        batch_norm: bool = False,
    ) -> None:
        columns = ordered(feature_columns)
        network = _network(hidden_units, columns, head.logits_dimension, activation_fn, dropout, batch_norm)

        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            logits = network(features, mode)
            chosen = chosen_optimizer(optimizer, 0.05) if mode == ModeKeys.TRAIN else None
            return head.create_estimator_spec(features, mode, logits, labels, chosen)

        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNLinearCombinedEstimator(Estimator):
    """A linear model and a network of dense layers whose logits are added up, each with an optimizer of its own.

    Args:
        head, model_dir, config, warm_start_from: see `LinearEstimator`.
        linear_feature_columns, linear_sparse_combiner: of the linear part, which is left out if there are no columns.
        linear_optimizer: "Ftrl" has a learning rate of min(0.005, 1/sqrt(number of columns)) as in tf.estimator.
        dnn_feature_columns, dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm: of the network, see
            `DNNEstimator`, which is left out if there are no columns.
        dnn_optimizer: "Adagrad" has a learning rate of 0.001 as in tf.estimator.

    Raises:
        ModelError: there are no columns, or an argument is out of its range.
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
        warm_start_from: Start = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        check_combiner(linear_sparse_combiner)
        linear = ordered(linear_feature_columns) if linear_feature_columns else []
        deep = ordered(dnn_feature_columns) if dnn_feature_columns else []
        if not linear and not deep:
            raise ModelError("give linear_feature_columns, dnn_feature_columns or both")
        if deep and not dnn_hidden_units:
            raise ModelError("dnn_feature_columns need dnn_hidden_units, the widths of the layers")
        units = head.logits_dimension
        network = _network(dnn_hidden_units or (), deep, units, dnn_activation_fn, dnn_dropout, batch_norm)
        rate = min(0.005, max(1, len(linear)) ** -0.5)

        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            parts, chosen = [], []
            if deep:
                parts.append(network(features, mode))
                chosen.append(("dnn/", dnn_optimizer, 0.001))
            if linear:
                with tf.name_scope("linear"):
                    parts.append(linear_model(features, linear, units, linear_sparse_combiner))
                chosen.append(("linear/", linear_optimizer, rate))
            optimizers = [] if mode != ModeKeys.TRAIN else [chosen_optimizer(o, r, scope) for scope, o, r in chosen]
            return head.create_estimator_spec(features, mode, tf.add_n(parts), labels, optimizers or None)

        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class LinearClassifier(LinearEstimator):
    """A linear model of classes.

    Args:
        feature_columns, model_dir, options: see `LinearEstimator`.
        n_classes, weight_column, label_vocabulary, loss_reduction: see `BinaryClassHead` and `MultiClassHead`.
    """

    def __init__(
        self,
        feature_columns: Columns,
        model_dir: str | Path | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        *,
        loss_reduction: Any = _MEAN,
        **options: Any,
    ) -> None:
        head = class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(head, feature_columns, model_dir, **options)


class LinearRegressor(LinearEstimator):
    """A linear model of numbers.

    Args:
        feature_columns, model_dir, options: see `LinearEstimator`.
        label_dimension, weight_column, loss_reduction: see `RegressionHead`.
    """

    def __init__(
        self,
        feature_columns: Columns,
        model_dir: str | Path | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        *,
        loss_reduction: Any = _MEAN,
        **options: Any,
    ) -> None:
        super().__init__(
            RegressionHead(label_dimension, weight_column, loss_reduction), feature_columns, model_dir, **options
        )


class DNNClassifier(DNNEstimator):
    """A network of dense layers for classes; for the arguments see `DNNEstimator` and `LinearClassifier`."""

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Columns,
        model_dir: str | Path | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        *,
        loss_reduction: Any = _MEAN,
        **options: Any,
    ) -> None:
        head = class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(head, hidden_units, feature_columns, model_dir, **options)


class DNNRegressor(DNNEstimator):
    """A network of dense layers for numbers; for the arguments see `DNNEstimator` and `LinearRegressor`."""

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Columns,
        model_dir: str | Path | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        *,
        loss_reduction: Any = _MEAN,
        **options: Any,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        super().__init__(head, hidden_units, feature_columns, model_dir, **options)


class DNNLinearCombinedClassifier(DNNLinearCombinedEstimator):
    """Both together, for classes; for the arguments see `DNNLinearCombinedEstimator` and `LinearClassifier`."""

    def __init__(
        self,
        model_dir: str | Path | None = None,
        *columns: Any,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: Any = _MEAN,
        **options: Any,
    ) -> None:
        super().__init__(
            class_head(n_classes, weight_column, label_vocabulary, loss_reduction), model_dir, *columns, **options
        )


class DNNLinearCombinedRegressor(DNNLinearCombinedEstimator):
    """Both together, for numbers; for the arguments see `DNNLinearCombinedEstimator` and `LinearRegressor`."""

    def __init__(
        self,
        model_dir: str | Path | None = None,
        *columns: Any,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: Any = _MEAN,
        **options: Any,
    ) -> None:
        super().__init__(RegressionHead(label_dimension, weight_column, loss_reduction), model_dir, *columns, **options)


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
    """The share of each class in the labels; for the arguments see `BaselineEstimator` and `LinearClassifier`."""

    def __init__(
        self,
        model_dir: str | Path | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        *,
        loss_reduction: Any = _MEAN,
        **options: Any,
    ) -> None:
        super().__init__(class_head(n_classes, weight_column, label_vocabulary, loss_reduction), model_dir, **options)


class BaselineRegressor(BaselineEstimator):
    """The mean of the labels; for the arguments see `BaselineEstimator` and `LinearRegressor`."""

    def __init__(
        self,
        model_dir: str | Path | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        *,
        loss_reduction: Any = _MEAN,
        **options: Any,
    ) -> None:
        super().__init__(RegressionHead(label_dimension, weight_column, loss_reduction), model_dir, **options)


def chosen_optimizer(given: Any, learning_rate: float, scope: str | None = None) -> OptimizerSpec:
    """What a canned estimator was given as its optimizer.

    Args:
        given: see `LinearEstimator`.
        learning_rate: of one that is given by its name.
        scope: what the names of the variables start with that it trains; None for all.

    Raises:
        ModelError: there is no such optimizer.
    """
    found = given() if callable(given) and not isinstance(given, keras.optimizers.Optimizer) else given
    if isinstance(found, str):
        kinds = {name.lower(): getattr(keras.optimizers, name) for name in _OPTIMIZERS}
        if found.lower() not in kinds:
            raise ModelError(
                f"there is no optimizer {found!r}; there are {', '.join(_OPTIMIZERS)}, or give one of Keras"
            )
        found = kinds[found.lower()](learning_rate)
    spec = found if isinstance(found, OptimizerSpec) else OptimizerSpec(found)
    return OptimizerSpec(spec.optimizer, spec.learning_rate, spec.clip_norm, spec.processors, spec.variables or scope)


def class_head(n_classes: int, weight_column: Any, vocabulary: Sequence[str] | None, loss_reduction: Any) -> Head:
    """A head of so many classes."""
    if n_classes == 2:
        return BinaryClassHead(weight_column, None, vocabulary, loss_reduction)
    return MultiClassHead(n_classes, weight_column, vocabulary, loss_reduction)


def _network(
    hidden_units: Sequence[int],
    columns: list[Any],
    units: int,
    activation_fn: Any,
    dropout: float | None,
    batch_norm: bool,
) -> Callable[[Any, str], tf.Tensor]:
    """A function from features and mode to logits."""

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


def _examples(features: Any) -> tf.Tensor:
    """How many examples there are."""
    leaves = keras.tree.flatten(features)
    if not leaves:
        raise ModelError("a Baseline estimator needs some feature, to know how many examples there are")
    first = leaves[0]
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    return tf.cast(first.nrows(), tf.int32) if isinstance(first, tf.RaggedTensor) else tf.shape(first)[0]
