"""A home for programs of `tf.estimator`, which TensorFlow 2.16 removed: a `model_fn` and its `input_fn`.

    from prototrain import estimator

    classifier = estimator.Estimator(model_fn, model_dir="results", params={"hidden_units": [10, 10]})
    classifier.train(input_fn, steps=1000)
    print(classifier.evaluate(other_input_fn))

Everything is done by prototrain's trainers and callbacks, and `model_dir` is an experiment like any other.
"""

from typing import NoReturn

from prototrain.errors import ModelError
from prototrain.estimator.estimator import Estimator, train_and_evaluate
from prototrain.estimator.hooks import SessionRunArgs, SessionRunHook
from prototrain.estimator.serving import (
    ServingInputReceiver,
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
)
from prototrain.estimator.specs import EstimatorSpec, EvalSpec, ModeKeys, OptimizerSpec, RunConfig, TrainSpec

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "ModeKeys",
    "OptimizerSpec",
    "RunConfig",
    "ServingInputReceiver",
    "SessionRunArgs",
    "SessionRunHook",
    "TrainSpec",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
    "train_and_evaluate",
]

_MODEL_FN = "write its network as a model_fn; the guide from tf.estimator has one"
_OF_HOOKS = "use the callback that the table in the guide from tf.estimator names; the usual ones are there already"
_INSTEAD = {
    "inputs": "return a tf.data.Dataset: tf.data.Dataset.from_tensor_slices((x, y)).shuffle(n).repeat().batch(32)",
    "export": "what it has is here itself: estimator.ServingInputReceiver, for example",
    "experimental": 'EarlyStopping("eval/loss", mode="min", patience=3).every(steps=n) takes the place of its hooks',
    "WarmStartSettings": "give the directory itself: Estimator(..., warm_start_from=directory)",
    "BestExporter": 'MinSaver("eval/loss").every(steps=n) keeps the best checkpoint for export_saved_model()',
    "LatestExporter": "call export_saved_model() after train_and_evaluate()",
    "FinalExporter": "call export_saved_model() after train_and_evaluate()",
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
