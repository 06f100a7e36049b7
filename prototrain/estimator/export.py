"""What an export takes and gives, by the names of `tf.estimator.export`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prototrain.errors import ModelError
from prototrain.estimator.serving import (
    ServingInputReceiver,
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
)

__all__ = [
    "ClassificationOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
]

DEFAULT = "serving_default"


@dataclass(frozen=True)
class PredictOutput:
    """The outputs of a signature.

    Attributes:
        outputs: a tensor, or tensors by name.
    """

    outputs: Any

    def tensors(self) -> dict[str, Any]:
        """The outputs by name."""
        return named(self.outputs)


@dataclass(frozen=True)
class ClassificationOutput:
    """Classes and their scores, as the outputs "classes" and "scores" of a signature.

    Attributes:
        scores: of each class, or None.
        classes: as texts, or None.
    """

    scores: Any = None
    classes: Any = None

    def tensors(self) -> dict[str, Any]:
        """The outputs by name.

        Raises:
            ModelError: there are neither.
        """
        found = {"classes": self.classes, "scores": self.scores}
        if all(tensor is None for tensor in found.values()):
            raise ModelError("ClassificationOutput needs scores or classes")
        return {name: tensor for name, tensor in found.items() if tensor is not None}


@dataclass(frozen=True)
class RegressionOutput:
    """A number for each example, as the output "outputs" of a signature.

    Attributes:
        value: the numbers.
    """

    value: Any

    def tensors(self) -> dict[str, Any]:
        """The outputs by name."""
        return {"outputs": self.value}


def named(tensors: Any) -> dict[str, Any]:
    """Tensors by name; a single one is called "output", and the parts of a name that is a tuple are joined."""
    if tensors is None:
        return {}
    if not isinstance(tensors, Mapping):
        return {"output": tensors}
    return {"/".join(map(str, name)) if isinstance(name, tuple) else name: value for name, value in tensors.items()}


def signatures(outputs: Mapping[str, Any] | None, predictions: Any) -> dict[str, dict[str, Any]]:
    """The tensors of each signature of an export, by its name.

    Args:
        outputs: the `export_outputs` of an `EstimatorSpec`.
        predictions: taken where there are none.

    Raises:
        ModelError: there are several, and none is the default.
    """
    if outputs is None:
        return {DEFAULT: named(predictions)}
    kinds = PredictOutput | ClassificationOutput | RegressionOutput
    found = {name: one.tensors() if isinstance(one, kinds) else named(one) for name, one in outputs.items()}
    if len(found) == 1:
        (only,) = found.values()
        return {DEFAULT: only, **found}
    if DEFAULT not in found:
        raise ModelError(
            f"export_outputs has {', '.join(found) or 'nothing'}; call one of them {DEFAULT!r}, to be taken where none "
            "is named"
        )
    return found
