"""Hyperparameters that a human sets while the run goes on."""

from __future__ import annotations

import math
import re
from typing import Any

from prototrain.callbacks.hyperparameters.hyper_param import HyperParam
from prototrain.callbacks.hyperparameters.hyper_param_setter import HyperParamSetter

_LINE = re.compile(r"\s*([^:=]+?)\s*[:=]\s*(\S+)\s*")


class HumanHyperParamSetter(HyperParamSetter):
    """Sets a hyperparameter to what stands in a file of the experiment directory, read whenever triggered.

    The file has lines like ``learning_rate: 0.001`` (or with ``=``); empty lines and those that begin with # are
    skipped, the last line of a name counts. A line that cannot be understood is reported once and ignored.

    Args:
        param: the hyperparameter, or what `HyperParam` takes first.
        file_name: the file in the experiment directory.
    """

    def __init__(self, param: HyperParam | Any, *, file_name: str = "hyper.txt") -> None:
        super().__init__(param)
        self._file_name = file_name
        self._reported: set[str] = set()

    def setup(self) -> None:
        super().setup()
        self._reported = set()
        self._path = self.trainer.require_experiment("HumanHyperParamSetter").directory / self._file_name

    def new_value(self) -> float | None:
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        value = None
        for line in text.splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                found = self._parse(line)
                value = value if found is None else found
        return value

    def first_value(self) -> float | None:
        return self.new_value()

    def _parse(self, line: str) -> float | None:
        match = _LINE.fullmatch(line)
        if match is not None and match[1] != self.param.name:
            return None
        try:
            value = float(match[2]) if match is not None else math.nan
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            return value
        if line not in self._reported:
            self._reported.add(line)
            self.trainer.log(
                f"WARNING: {self._path}: ignored the line {line!r}; write it like {self.param.name}: 0.001"
            )
        return None
