"""Callbacks that process or dump tensors of a step."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from prototrain.callbacks.base import Callback, Priority
from prototrain.callbacks.pictures import pictures, png
from prototrain.errors import CallbackError
from prototrain.system.files import write_atomic

Array = np.ndarray[Any, Any]

_IMAGES = 4


class ProcessTensors(Callback):
    """Calls a function with tensors of the last step.

        ProcessTensors(["x", "logits"], lambda x, logits: print(x.shape, logits.mean())).every(steps=100)

    In a trainer whose `run_step` is in Python, the tensors are the scalars that it returned. The function is not called
    with asynchronous towers and several workers.

    Args:
        names: names of tensors of the model or the batch. Tensors of all towers are concatenated.
        function: takes the arrays in the order of `names`. Subclasses override `process` instead.

    Raises:
        CallbackError: while training, if there is no such tensor.
        ModelError: in a compiled step, if there is no such tensor.
    """

    def __init__(self, names: str | Sequence[str], function: Callable[..., Any] | None = None) -> None:
        self.names = [names] if isinstance(names, str) else list(names)
        self._function = function

    def process(self, *arrays: Array) -> None:
        """Process the arrays."""
        if self._function is not None:
            self._function(*arrays)

    def watches(self) -> Collection[str] | None:
        return self.names

    def trigger(self) -> None:
        watched, outputs = self.trainer.watched, self.trainer.outputs
        if self.trainer.is_compiled and not watched:
            return  # the run ended at an unplanned step
        values = {**outputs, **watched}
        missing = [name for name in self.names if name not in values]
        if missing:
            known = ", ".join(values) or "none"
            raise CallbackError(f"{self.name}: there is no tensor {', '.join(missing)} in the step; there are: {known}")
        self.process(*(np.asarray(values[name]) for name in self.names))


class DumpTensors(ProcessTensors):
    """Writes tensors of the last step to ``analysis/tensors/step-<step>.npz``.

    Args:
        names: names of tensors of the model or the batch; also their names in the file.
    """

    priority = Priority.WRITE

    def setup(self) -> None:
        self._directory = self.trainer.require_experiment("DumpTensors").directory / "analysis" / "tensors"

    def process(self, *arrays: Array) -> None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **dict(zip(self.names, arrays, strict=True)))  # type: ignore[arg-type]
        self._directory.mkdir(parents=True, exist_ok=True)
        write_atomic(self._directory / f"step-{self.trainer.global_step:010d}.npz", buffer.getvalue())


class DumpTensorAsImage(ProcessTensors):
    """Writes up to four examples of a tensor as PNG files to ``analysis/images/``.

    Args:
        name: the name of a tensor of the model or the batch, of shape ``[height, width]``, ``[batch, height, width]``
            or ``[batch, height, width, channels]`` with 1, 3 or 4 channels, with values from 0 to 255.
        prefix: prefix of the file names. Defaults to the tensor's name.
        scale: a factor for the values, such as 255 for values from 0 to 1.
        map_function: converts the array to one of these shapes before scaling.

    Raises:
        CallbackError: while training, if the shape is not supported.
    """

    priority = Priority.WRITE

    def __init__(
        self,
        name: str,
        *,
        prefix: str | None = None,
        scale: float = 1.0,
        map_function: Callable[[Array], Any] | None = None,
    ) -> None:
        super().__init__(name)
        self._prefix = name if prefix is None else prefix
        self._scale = scale
        self._map_function = map_function

    def setup(self) -> None:
        self._directory = self.trainer.require_experiment(self.name).directory / "analysis" / "images"

    def process(self, *arrays: Array) -> None:
        images = np.asarray(arrays[0] if self._map_function is None else self._map_function(arrays[0]))
        images = images[..., None] if images.ndim == 3 else images  # a batch, not one image with channels
        self._directory.mkdir(parents=True, exist_ok=True)
        for index, image in enumerate(pictures(self.names[0], images * self._scale)[:_IMAGES]):
            name = f"{self._prefix}-step-{self.trainer.global_step:010d}-{index}.png".replace("/", "-")
            write_atomic(self._directory / name, png(image))
