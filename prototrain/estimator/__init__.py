"""The `tf.estimator` API, which TensorFlow 2.16 removed.

    from prototrain import estimator

    classifier = estimator.Estimator(model_fn, model_dir="results", params={"hidden_units": [10, 10]})
    classifier.train(input_fn, steps=1000)
    print(classifier.evaluate(other_input_fn))

prototrain's trainers and callbacks run the training, and `model_dir` is an experiment directory.
"""

from typing import NoReturn

from prototrain.errors import ModelError
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
    LogisticRegressionHead,
    MultiClassHead,
    MultiLabelHead,
    PoissonRegressionHead,
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
    WarmStartSettings,
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
    "LogisticRegressionHead",
    "ModeKeys",
    "MultiClassHead",
    "MultiLabelHead",
    "OptimizerSpec",
    "PoissonRegressionHead",
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
    "WarmStartSettings",
    "add_metrics",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
    "export",
    "feature_column",
    "train_and_evaluate",
]

_GUIDE = "see the guide 'From tf.estimator' for replacements"
_INSTEAD = {
    "inputs": "return a tf.data.Dataset: tf.data.Dataset.from_tensor_slices((x, y)).shuffle(n).repeat().batch(32)",
    "experimental": 'EarlyStopping("eval/loss", mode="min", patience=3).every(steps=n) replaces its hooks',
    "tpu": "there is no TPU; see the page on several devices for what there is",
    "MultiHead": "add the losses of several heads up in a model_fn, and give EstimatorSpec the sum",
    "VocabInfo": "rows are not taken over by words; begin with an .npz that has them in the new order",
    "SecondOrStepTimer": "make the hook a callback and give it .every(steps=..., seconds=...)",
    "CheckpointSaverListener": "give train() a callback as a hook, with priority = Priority.SAVE + 1",
    "NanLossDuringTrainingError": "prototrain.errors.NonFiniteError is what a loss that is not finite raises",
}


def __getattr__(name: str) -> NoReturn:
    is_known = name.endswith(("Classifier", "Regressor", "Estimator", "Head", "Hook", "parse_example_spec"))
    if name not in _INSTEAD and not is_known:
        raise AttributeError(f"module 'prototrain.estimator' has no attribute {name!r}")
    raise ModelError(f"prototrain.estimator has no {name}: {_INSTEAD.get(name, _GUIDE)}")
