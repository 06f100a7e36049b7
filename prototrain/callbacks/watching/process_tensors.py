"""Looking at tensors of a training step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from prototrain.callbacks.base import Callback
from prototrain.errors import CallbackError


class ProcessTensors(Callback):
    """Calls a function with tensors of the last step whenever triggered; the other steps do not notice.

    In a trainer whose steps are plain Python, the tensors are the scalars that `run_step` returned. Asynchronous towers
    and several workers show no tensors; there nothing is called.

    Args:
        names: of tensors in the model's mapping or in the batch; those of all towers stand one after the other.
        function: takes the arrays in this order.

    Raises:
        CallbackError: while training, if there is no such tensor (in a compiled step: ModelError).
    """

    def __init__(self, names: str | Sequence[str], function: Callable[..., Any] | None = None) -> None:
        self.names = [names] if isinstance(names, str) else list(names)
        self._function = function

    def process(self, *arrays: np.ndarray[Any, Any]) -> None:
        """What is done with the arrays; a subclass may override it."""
        if self._function is not None:
            self._function(*arrays)

    def watches(self) -> Collection[str] | None:
        return self.names

    def trigger(self) -> None:
        watched, outputs = self.trainer.watched, self.trainer.outputs
        if self.trainer.is_compiled and not watched:
            return  # the run ended at a step that nobody could know to be its last
        missing = [name for name in self.names if name not in watched and name not in outputs]
        if missing:
            known = ", ".join([*watched, *outputs]) or "none"
            raise CallbackError(f"{self.name}: there is no tensor {', '.join(missing)} in the step; there are: {known}")
        self.process(*(np.asarray(watched[name] if name in watched else outputs[name]) for name in self.names))
