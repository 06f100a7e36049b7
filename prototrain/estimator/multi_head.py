"""Several heads on one network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.estimator.base_head import Head, Metrics
from prototrain.estimator.export import DEFAULT, PredictOutput


class MultiHead(Head):
    """Several heads, whose losses are added up. Metrics end with the names of the heads.

    Labels are a dict by the names of the heads, and logits are too, or else one tensor with those of all heads side by
    side. Predictions are called by pairs of the head's name and what it calls them.

    Args:
        heads: have names, each another one. An export gives by default what the first one does.
        head_weights: what their losses are multiplied by; 1 if None.

    Raises:
        ModelError: a head has no name, or the weights do not fit.
    """

    def __init__(self, heads: Sequence[Head], head_weights: Sequence[float] | None = None) -> None:
        names = [head.name for head in heads]
        if not heads or None in names or len(set(names)) < len(names):
            raise ModelError(f"MultiHead needs heads that have names, each another one, not {names}")
        self._heads: Mapping[str, Head] = {str(head.name): head for head in heads}
        self._weights = [1.0] * len(heads) if head_weights is None else list(head_weights)
        if len(self._weights) != len(heads):
            raise ModelError(f"MultiHead has {len(heads)} heads and {len(self._weights)} head_weights")
        self.logits_dimension = sum(head.logits_dimension for head in heads)
        self.name = "_".join(self._heads)

    def _of_each(self, what: str, given: Any) -> Mapping[str, Any]:
        if not isinstance(given, Mapping):
            raise ModelError(f"MultiHead: {what} must be a dict by the heads' names, not {type(given).__name__}")
        missing = [name for name in self._heads if name not in given]
        if missing:
            raise ModelError(f"MultiHead: {what} lacks {', '.join(missing)}")
        return given

    def _split(self, logits: Any) -> Mapping[str, Any]:
        if isinstance(logits, Mapping):
            return self._of_each("logits", logits)
        if logits.shape[-1] != self.logits_dimension:
            raise ModelError(f"MultiHead: there must be {self.logits_dimension} logits, not {logits.shape[-1]}")
        parts = tf.split(logits, [head.logits_dimension for head in self._heads.values()], axis=-1)
        return dict(zip(self._heads, parts, strict=True))

    def loss(self, labels: Any, logits: Any, features: Any = None, mode: str | None = None) -> tf.Tensor:
        labels, logits = self._of_each("labels", labels), self._split(logits)
        losses = [head.loss(labels[name], logits[name], features, mode) for name, head in self._heads.items()]
        return tf.add_n([weight * loss for weight, loss in zip(self._weights, losses, strict=True)])

    def predictions(self, logits: Any) -> dict[Any, Any]:
        logits = self._split(logits)
        each = {name: head.predictions(logits[name]) for name, head in self._heads.items()}
        return {(name, key): value for name, found in each.items() for key, value in found.items()}

    def metrics(self, features: Any, logits: Any, labels: Any) -> Metrics:
        labels, logits = self._of_each("labels", labels), self._split(logits)
        found: Metrics = {}
        for name, head in self._heads.items():
            loss = found[f"loss/{name}"] = keras.metrics.Mean(name=f"loss_{name}", dtype="float64")
            loss.update_state(head.loss(labels[name], logits[name], features))
            found |= head.metrics(features, logits[name], labels[name])
        return found

    def export_outputs(self, logits: Any) -> dict[str, Any]:
        logits = self._split(logits)
        found: dict[str, Any] = {}
        for name, head in self._heads.items():
            for key, output in head.export_outputs(logits[name]).items():
                if key == DEFAULT:
                    found.setdefault(DEFAULT, output)
                found[name if key == DEFAULT else f"{name}/{key}"] = output
        everything = {"/".join(key): value for key, value in self.predictions(logits).items()}
        return {**found, "predict": PredictOutput(everything)}
