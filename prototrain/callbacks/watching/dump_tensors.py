"""Writing tensors of a training step into files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from prototrain.callbacks.base import Priority
from prototrain.callbacks.watching.process_tensors import ProcessTensors
from prototrain.system.files import write_atomic


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
        named: dict[str, Any] = dict(zip(self.names, arrays, strict=True))
        np.savez_compressed(buffer, **named)
        self._directory.mkdir(parents=True, exist_ok=True)
        write_atomic(self._directory / f"step-{self.trainer.global_step:010d}.npz", buffer.getvalue())
