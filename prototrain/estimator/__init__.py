"""A home for programs of `tf.estimator`, which TensorFlow 2.16 removed: a `model_fn` and its `input_fn`.

    from prototrain import estimator

    classifier = estimator.Estimator(model_fn, model_dir="results", params={"hidden_units": [10, 10]})
    classifier.train(input_fn, steps=1000)
    print(classifier.evaluate(other_input_fn))

Everything is done by prototrain's trainers and callbacks, and `model_dir` is an experiment like any other.
"""

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
