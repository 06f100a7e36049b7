"""Tensors of a training step: for a function, as files, as pictures."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback, Priority
from prototrain.callbacks.pictures import pictures, png
from prototrain.errors import CallbackError
from prototrain.system.files import write_atomic


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
        """Process the arrays; a subclass may override this."""
        if self._function is not None:
            self._function(*arrays)

    def watches(self) -> Collection[str] | None:
        return self.names

    def trigger(self) -> None:
        watched, outputs = self.trainer.watched, self.trainer.outputs
        if self.trainer.is_compiled and not watched:
            return  # the run ended at a step that was not planned as its last
        missing = [name for name in self.names if name not in watched and name not in outputs]
        if missing:
            known = ", ".join([*watched, *outputs]) or "none"
            raise CallbackError(f"{self.name}: there is no tensor {', '.join(missing)} in the step; there are: {known}")
        self.process(*(np.asarray(watched[name] if name in watched else outputs[name]) for name in self.names))


class DumpTensors(ProcessTensors):
    """Writes tensors of the last step into ``analysis/tensors/step-<step>.npz`` whenever triggered.

    Args:
        names: of tensors in the model's mapping or in the batch; `numpy.load` gives them back by these names.
    """

    priority = Priority.WRITE

    def __init__(self, names: str | Sequence[str]) -> None:
        super().__init__(names)

    def setup(self) -> None:
        self._directory = self.trainer.require_experiment("DumpTensors").directory / "analysis" / "tensors"

    def process(self, *arrays: np.ndarray[Any, Any]) -> None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **dict(zip(self.names, arrays, strict=True)))  # type: ignore[arg-type]
        self._directory.mkdir(parents=True, exist_ok=True)
        write_atomic(self._directory / f"step-{self.trainer.global_step:010d}.npz", buffer.getvalue())


class DumpTensorAsImage(ProcessTensors):
    """Writes a tensor of the last step as PNG files into ``analysis/images/`` whenever triggered.

    Args:
        name: of a tensor in the model's mapping or in the batch, of shape ``[height, width]``,
            ``[batch, height, width]`` or ``[batch, height, width, channels]`` with 1, 3 or 4 channels; values from 0
            to 255.
        prefix: what the files' names start with; the tensor's name if None.
        scale: what the values are multiplied by first, such as 255 for values from 0 to 1.
        max_images: how many examples of the batch are written.
        map_function: called with the array first; returns one as above.

    Raises:
        CallbackError: while training, if the tensor is not of such a shape.
    """

    priority = Priority.WRITE

    def __init__(
        self,
        name: str,
        *,
        prefix: str | None = None,
        scale: float = 1.0,
        max_images: int = 4,
        map_function: Callable[[np.ndarray[Any, Any]], Any] | None = None,
    ) -> None:
        super().__init__(name)
        self._prefix = name if prefix is None else prefix
        self._scale = scale
        self._max_images = max_images
        self._map_function = map_function

    def setup(self) -> None:
        self._directory = self.trainer.require_experiment("DumpTensorAsImage").directory / "analysis" / "images"

    def process(self, *arrays: np.ndarray[Any, Any]) -> None:
        images = np.asarray(arrays[0] if self._map_function is None else self._map_function(arrays[0]))
        images = images[..., None] if images.ndim == 3 else images  # of a batch, not of one with channels
        self._directory.mkdir(parents=True, exist_ok=True)
        for index, image in enumerate(pictures(self.names[0], images * self._scale)[: self._max_images]):
            name = f"{self._prefix}-step-{self.trainer.global_step:010d}-{index}.png".replace("/", "-")
            write_atomic(self._directory / name, png(image))


class DumpParamAsImage(DumpTensorAsImage):
    """Writes a variable of the model as PNG files into ``analysis/images/`` whenever triggered.

    Args:
        name: of the variable, such as ``conv0/kernel``; of a shape as for `DumpTensorAsImage`.
        options: those of `DumpTensorAsImage`; a `map_function` makes pictures of a kernel, for example.

    Raises:
        CallbackError: while training, if the array is not of such a shape; at setup, if there is no such variable.
    """

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name.removesuffix(":0"), **options)

    def setup(self) -> None:
        super().setup()
        if self.names[0] not in (known := self.trainer.model_variables):
            raise CallbackError(
                f"DumpParamAsImage: there is no variable {self.names[0]!r}; there are: {', '.join(known)}"
            )

    def watches(self) -> Collection[str] | None:
        return None

    def trigger(self) -> None:
        self.process(np.asarray(tf.convert_to_tensor(self.trainer.model_variables[self.names[0]])))
