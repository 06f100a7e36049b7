"""A home for programs of `tf.estimator`, which TensorFlow 2.16 removed: a `model_fn` and its `input_fn`.

    from prototrain import estimator

    classifier = estimator.Estimator(model_fn, model_dir="results", params={"hidden_units": [10, 10]})
    classifier.train(input_fn, steps=1000)
    print(classifier.evaluate(other_input_fn))

Everything is done by prototrain's trainers and callbacks, and `model_dir` is an experiment like any other.
"""

from typing import NoReturn

from prototrain.errors import ModelError
from prototrain.estimator import export, feature_column
from prototrain.estimator.base_head import Head
from prototrain.estimator.baseline import BaselineClassifier, BaselineEstimator, BaselineRegressor
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
from prototrain.estimator.export import ClassificationOutput, PredictOutput, RegressionOutput
from prototrain.estimator.exporters import BestExporter, Exporter, FinalExporter, LatestExporter
from prototrain.estimator.heads import (
    BinaryClassHead,
    LogisticRegressionHead,
    MultiClassHead,
    PoissonRegressionHead,
    RegressionHead,
)
from prototrain.estimator.hooks import (
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from prototrain.estimator.logging_hook import LoggingTensorHook
from prototrain.estimator.multi_head import MultiHead
from prototrain.estimator.multi_label_head import MultiLabelHead
from prototrain.estimator.serving import (
    ServingInputReceiver,
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
)
from prototrain.estimator.specs import (
    EstimatorSpec,
    EvalSpec,
    ModeKeys,
    OptimizerSpec,
    RunConfig,
    TrainSpec,
    VocabInfo,
    WarmStartSettings,
)

__all__ = [
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
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
    "MultiHead",
    "MultiLabelHead",
    "OptimizerSpec",
    "PoissonRegressionHead",
    "PredictOutput",
    "RegressionHead",
    "RegressionOutput",
    "RunConfig",
    "SecondOrStepTimer",
    "ServingInputReceiver",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "add_metrics",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
    "export",
    "feature_column",
    "train_and_evaluate",
]

_TREES = "train XGBoost or Decision Forests by a run_step of your own; the guide to boosted trees has one"
_MODEL_FN = "write its network as a model_fn; the guide from tf.estimator has one"
_OF_HOOKS = "use the callback that the table in the guide from tf.estimator names; the usual ones are there already"
_PARSE_SPEC = (
    "add the label to feature_column.make_parse_example_spec(columns): {**spec, key: tf.io.FixedLenFeature(...)}"
)
_INSTEAD = {
    "inputs": "return a tf.data.Dataset: tf.data.Dataset.from_tensor_slices((x, y)).shuffle(n).repeat().batch(32)",
    "experimental": 'EarlyStopping("eval/loss", mode="min", patience=3).every(steps=n) takes the place of its hooks',
    "tpu": "there is no TPU; see the page on several devices for what there is",
    "BoostedTreesClassifier": _TREES,
    "BoostedTreesEstimator": _TREES,
    "BoostedTreesRegressor": _TREES,
    "NanLossDuringTrainingError": "prototrain.errors.NonFiniteError is what a loss that is not finite raises",
    "NanTensorHook": "StopOnNaN is in every run, and ends it at the step whose loss or gradient is not finite",
    "StopAtStepHook": "give train() its max_steps",
    "CheckpointSaverHook": "RunConfig(save_checkpoints_steps=..., save_checkpoints_secs=...) says when; for more "
    "give train() the hook ModelSaver(keep_every_n_hours=...).every(seconds=...)",
    "CheckpointSaverListener": "give train() a callback as a hook, with priority = Priority.SAVE + 1",
    "SummarySaverHook": "RunConfig(save_summary_steps=...) says when",
    "StepCounterHook": "use the callback ThroughputTracker()",
    "ProfilerHook": "use the callback GraphProfiler()",
    "FeedFnHook": "let input_fn give the values: a step cannot be fed",
    "FinalOpsHook": "read what you want after train(): get_variable_value(name), or evaluate()",
    "GlobalStepWaiterHook": "workers begin together: see the page on several devices",
    "classifier_parse_example_spec": _PARSE_SPEC,
    "regressor_parse_example_spec": _PARSE_SPEC,
}


def __getattr__(name: str) -> NoReturn:
    instead = _INSTEAD.get(name)
    if instead is None and name.endswith(("Classifier", "Regressor", "Estimator", "Head")):
        instead = _MODEL_FN
    if instead is None and name.endswith("Hook"):
        instead = _OF_HOOKS
    if instead is None:
        raise AttributeError(f"module 'prototrain.estimator' has no attribute {name!r}")
    raise ModelError(f"prototrain.estimator has no {name}: {instead}")
