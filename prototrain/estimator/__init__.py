"""The `tf.estimator` API, which TensorFlow 2.16 removed.

    from prototrain import estimator

    classifier = estimator.Estimator(model_fn, model_dir="results", params={"hidden_units": [10, 10]})
    classifier.train(input_fn, steps=1000)
    print(classifier.evaluate(other_input_fn))

prototrain's trainers and callbacks run the training, and `model_dir` is an experiment directory.
"""

from prototrain.estimator import export, feature_column
from prototrain.estimator.canned import (
    DNNClassifier,
    DNNEstimator,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearEstimator,
    LinearRegressor,
)
from prototrain.estimator.estimator import Estimator, add_metrics, train_and_evaluate
from prototrain.estimator.export import (
    ClassificationOutput,
    PredictOutput,
    RegressionOutput,
    ServingInputReceiver,
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
)
from prototrain.estimator.exporters import BestExporter, Exporter, FinalExporter, LatestExporter
from prototrain.estimator.heads import (
    BinaryClassHead,
    Head,
    MultiClassHead,
    MultiLabelHead,
    RegressionHead,
)
from prototrain.estimator.hooks import (
    LoggingTensorHook,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from prototrain.estimator.specs import (
    EstimatorSpec,
    EvalSpec,
    ModeKeys,
    OptimizerSpec,
    RunConfig,
    TrainSpec,
)

__all__ = [
    "BestExporter",
    "BinaryClassHead",
    "ClassificationOutput",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "Head",
    "LatestExporter",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "LoggingTensorHook",
    "ModeKeys",
    "MultiClassHead",
    "MultiLabelHead",
    "OptimizerSpec",
    "PredictOutput",
    "RegressionHead",
    "RegressionOutput",
    "RunConfig",
    "ServingInputReceiver",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "TrainSpec",
    "add_metrics",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
    "export",
    "feature_column",
    "train_and_evaluate",
]
