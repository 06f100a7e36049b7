"""Tensors of a step and variables: for a function, as files, as pictures, as summaries."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback, Priority, matching_variables
from prototrain.callbacks.pictures import pictures, png
from prototrain.errors import CallbackError
from prototrain.system.files import write_atomic

Array = np.ndarray[Any, Any]

_IMAGES = 4


class ProcessTensors(Callback):
    """Calls a function with tensors of the last step whenever triggered.

        ProcessTensors(["x", "logits"], lambda x, logits: print(x.shape, logits.mean())).every(steps=100)

    In a trainer with steps in plain Python, the tensors are the scalars that `run_step` returned. With asynchronous
    towers and several workers nothing is called.

    Args:
        names: of tensors in the model's mapping or in the batch; those of all towers are concatenated.
        function: takes the arrays in this order; a subclass overrides `process` instead.

    Raises:
        CallbackError: while training, if there is no such tensor (in a compiled step: ModelError).
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
            return  # the run ended at a step that was not planned as its last
        values = {**outputs, **watched}
        missing = [name for name in self.names if name not in values]
        if missing:
            known = ", ".join(values) or "none"
            raise CallbackError(f"{self.name}: there is no tensor {', '.join(missing)} in the step; there are: {known}")
        self.process(*(np.asarray(values[name]) for name in self.names))


class DumpTensors(ProcessTensors):
    """Writes tensors of the last step into ``analysis/tensors/step-<step>.npz`` whenever triggered.

    Args:
        names: of tensors in the model's mapping or in the batch, and in the file.
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
    """Writes up to four examples of a tensor as PNG files into ``analysis/images/`` whenever triggered.

    Args:
        name: of a tensor in the model's mapping or in the batch, of shape ``[height, width]``,
            ``[batch, height, width]`` or ``[batch, height, width, channels]`` with 1, 3 or 4 channels; values from 0
            to 255.
        prefix: what the files' names start with; the tensor's name if None.
        scale: a factor for the values, such as 255 for values from 0 to 1.
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
        images = images[..., None] if images.ndim == 3 else images  # of a batch, not of one with channels
        self._directory.mkdir(parents=True, exist_ok=True)
        for index, image in enumerate(pictures(self.names[0], images * self._scale)[:_IMAGES]):
            name = f"{self._prefix}-step-{self.trainer.global_step:010d}-{index}.png".replace("/", "-")
            write_atomic(self._directory / name, png(image))


class DumpParamAsImage(DumpTensorAsImage):
    """Writes a variable of the model as PNG files into ``analysis/images/`` whenever triggered.

    Args:
        name: of the variable, such as ``conv0/kernel``.
        options: those of `DumpTensorAsImage`; a `map_function` makes pictures of a kernel, for example.

    Raises:
        CallbackError: at setup, if there is no such variable; while training, as for `DumpTensorAsImage`.
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


_KINDS: dict[str, Callable[[Array], Any]] = {
    "mean": np.mean,
    "rms": lambda array: np.sqrt(np.mean(np.square(array))),
    "sparsity": lambda array: np.mean(array == 0),
}


def _checked(who: str, kinds: str | Sequence[str]) -> list[str]:
    given = [kinds] if isinstance(kinds, str) else list(kinds)
    known = ["scalar", "histogram", *_KINDS]
    for kind in given:
        if kind not in known:
            raise CallbackError(f"{who}: there is no {kind!r}; there are {', '.join(known)}")
    return given


def _record(callback: Callback, name: str, array: Array, kinds: Sequence[str]) -> None:
    monitors = callback.trainer.monitors
    numbers = array.astype(np.float64)
    for kind in kinds:
        if kind == "scalar":
            monitors.put_scalar(name, array)
        elif kind == "histogram":
            monitors.put_histogram(f"{name}-histogram", numbers)
        else:
            monitors.put_scalar(f"{name}-{kind}", _KINDS[kind](numbers))


class TensorSummary(ProcessTensors):
    """Records numbers about tensors of the last step, whenever triggered.

        TensorSummary(["x", "logits"], ["mean", "rms"]).every(steps=100)

    "mean", "rms" (the root mean square) and "sparsity" (the share of zeros) are scalars called ``trn/<tensor>-<kind>``,
    "scalar" is the tensor itself, and "histogram" is for `TensorBoardWriter`.

    Args:
        names: of tensors in the model's mapping or in the batch.
        kinds: some of these.

    Raises:
        CallbackError: there is no such kind; while training, if there is no such tensor.
    """

    prefix = "trn"

    def __init__(self, names: str | Sequence[str], kinds: str | Sequence[str]) -> None:
        super().__init__(names)
        self.kinds = _checked(self.name, kinds)

    def setup(self) -> None:
        self.trainer.monitors.registry.announce(self, self.prefix)

    def process(self, *arrays: Array) -> None:
        for name, array in zip(self.names, arrays, strict=True):
            _record(self, f"{self.prefix}/{name}", array, self.kinds)


class ActivationSummary(TensorSummary):
    """Records sparsity, root mean square and histogram of a layer's outputs, as ``trn/activation-summary/...``.

        ActivationSummary("fc0").every(steps=100)

    Args:
        names: of tensors in the model's mapping.
        kinds: as for `TensorSummary`.

    Raises:
        CallbackError: as for `TensorSummary`.
    """

    prefix = "trn/activation-summary"

    def __init__(
        self, names: str | Sequence[str], kinds: str | Sequence[str] = ("sparsity", "rms", "histogram")
    ) -> None:
        super().__init__(names, kinds)


class ParamSummary(Callback):
    """Records numbers about trained variables, whenever triggered, called ``param-summary/<variable>-<kind>``.

        ParamSummary((".*/kernel", ["histogram", "rms"]), (".*/gamma", "mean"))

    Args:
        choices: pairs of a regular expression for full names of variables, and of kinds as for `TensorSummary`.

    Raises:
        CallbackError: there is no such kind; at setup, if a regular expression matches no trained variable.
    """

    def __init__(self, *choices: tuple[str, str | Sequence[str]]) -> None:
        self.choices = [(pattern, _checked("ParamSummary", kinds)) for pattern, kinds in choices]

    def setup(self) -> None:
        self.trainer.monitors.registry.announce(self, "param-summary")
        self._variables = [
            (name, variable, kinds)
            for pattern, kinds in self.choices
            for name, variable in matching_variables(self.name, self.trainer.trained_variables, pattern).items()
        ]

    def trigger(self) -> None:
        for name, variable, kinds in self._variables:
            _record(self, f"param-summary/{name}", np.asarray(tf.convert_to_tensor(variable)), kinds)
