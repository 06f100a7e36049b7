"""Inputs and outputs of exported models, with the names of `tf.estimator.export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.actions.saved_model import DEFAULT
from prototrain.errors import ModelError

__all__ = [
    "ClassificationOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
]


def PredictOutput(outputs: Any) -> dict[str, Any]:
    """Return the outputs of a prediction signature, from a tensor or a dict of tensors by name."""
    return named(outputs)


def ClassificationOutput(scores: Any = None, classes: Any = None) -> dict[str, Any]:
    """Return the outputs "classes" and "scores" of a signature: the class names as strings, and their scores."""
    found = {"classes": classes, "scores": scores}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def RegressionOutput(value: Any) -> dict[str, Any]:
    """Return the output "outputs" of a regression signature, one number per example."""
    return {"outputs": value}


def named(tensors: Any) -> dict[str, Any]:
    """Return tensors by name; a single tensor is named "output"."""
    if tensors is None:
        return {}
    return dict(tensors) if isinstance(tensors, Mapping) else {"output": tensors}


def signatures(outputs: Mapping[str, Any] | None, predictions: Any) -> dict[str, dict[str, Any]]:
    """Return the outputs of each signature by name, from the `export_outputs` and predictions of an `EstimatorSpec`."""
    if outputs is None:
        return {DEFAULT: named(predictions)}
    found = {name: named(tensors) for name, tensors in outputs.items()}
    if len(found) == 1:
        (only,) = found.values()
        return {DEFAULT: only, **found}
    if DEFAULT not in found:
        raise ModelError(
            f"export_outputs has {', '.join(found) or 'nothing'}; call one of them {DEFAULT!r}, to be taken where none "
            "is named"
        )
    return found


@dataclass(frozen=True)
class ServingInputReceiver:
    """The inputs of an exported model.

    Attributes:
        features: a function from the received tensors by name to the features for `model_fn`. For any other value
            the received tensors are the features.
        receiver_tensors: a `tf.TensorSpec` for each input by name; the first dimension is the batch.
        example: a batch for a trial call of the model; zeros and empty strings if None.
    """

    features: Any
    receiver_tensors: Mapping[str, tf.TensorSpec]
    example: Mapping[str, Any] | None = None

    def receive(self, inputs: dict[str, tf.Tensor]) -> Any:
        """Return the features for `model_fn` from the received tensors."""
        if callable(self.features):
            return self.features(inputs)
        is_single = not isinstance(self.features, Mapping) and len(inputs) == 1
        return next(iter(inputs.values())) if is_single else inputs

    def dataset(self) -> tf.data.Dataset:
        """Return a dataset of one batch with the declared shapes, for a trial call of the model."""
        specs = dict(self.receiver_tensors)
        example = self.example
        if example is None:
            example = {name: tf.zeros([size or 1 for size in spec.shape], spec.dtype) for name, spec in specs.items()}
        return tf.data.Dataset.from_generator(lambda: [dict(example)], output_signature=specs)


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any], *, example: Mapping[str, Any] | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a `serving_input_receiver_fn` for a model that takes the features directly.

    Args:
        features: a `tf.TensorSpec` for each feature by name.
        example: see `ServingInputReceiver`.
    """
    return lambda: ServingInputReceiver(features, features, example)


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], *, example: Mapping[str, Any] | None = None
) -> Callable[[], ServingInputReceiver]:
    """Return a `serving_input_receiver_fn` for a model that takes serialized `tf.train.Example` protos.

    Args:
        feature_spec: the features argument of `tf.io.parse_example`.
        example: the features of one example, for a trial call of the model. Missing features are zeros and empty
            strings.
    """
    tried = tf.train.Example(features=tf.train.Features(feature=_features(feature_spec, example or {})))
    return lambda: ServingInputReceiver(
        lambda inputs: tf.io.parse_example(inputs["examples"], dict(feature_spec)),
        {"examples": tf.TensorSpec([None], tf.string)},
        example={"examples": [tried.SerializeToString()]},
    )


def _features(feature_spec: Mapping[str, Any], example: Mapping[str, Any]) -> dict[str, tf.train.Feature]:
    """Return the features of one `tf.train.Example`; missing features of fixed length are zeros or empty strings."""
    found = {}
    for name, spec in feature_spec.items():
        if name in example:
            values = np.ravel(example[name]).tolist()
        elif isinstance(spec, tf.io.FixedLenFeature):
            values = [b"" if spec.dtype == tf.string else 0] * int(np.prod(spec.shape, dtype=int))
        else:
            continue
        feature = found[name] = tf.train.Feature()
        if spec.dtype == tf.string:
            feature.bytes_list.value.extend(value.encode() if isinstance(value, str) else value for value in values)
        elif spec.dtype.is_floating:
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    return found
