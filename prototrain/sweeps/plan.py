"""The plan of a sweep, which all processes and machines of the sweep share."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prototrain.config import Config
from prototrain.errors import ConfigError, SweepError
from prototrain.experiment import Experiment
from prototrain.schedules import from_config
from prototrain.sweeps.space import Space

if TYPE_CHECKING:
    from prototrain.callbacks.monitor import Mode

_OF_EACH_TRIAL: Final = ("trainer.experiment_base_dir", "trainer.experiment_name")
# Keys that may differ between two commands of one sweep, because no result depends on them.
_OF_EACH_COMMAND = {"trainer.experiment_base_dir", "trainer.failures_per_day", "trainer.max_checkpoints_to_keep"}
_OF_EACH_COMMAND |= {f"trainer.{name}_interval" for name in ("summary_save", "print", "checkpoint_save")}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The values to try, and the objective; see `prototrain.sweep`. `config` has the values that all trials share.

    Raises:
        SweepError: the space is empty, or does not fit `trials`.
        ConfigError: a key or a value is wrong.
    """

    config: Config
    space: Space
    trials: int | None
    objective: str
    mode: Mode

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise SweepError(f'mode must be "min" or "max", got {self.mode!r}')
        if self.trials is not None and self.trials < 1:
            raise SweepError(f"trials must be at least 1, got {self.trials}")
        if self.trials is None and any(dimension.kind != "choice" for dimension in self.space.values()):
            raise SweepError("a range cannot be run in full: give the number of trials, such as --trials 20")
        if "{timestamp}" in self.name:
            raise SweepError(f"trainer.experiment_name: {self.name!r} would make every command another sweep")
        self.experiment(0)  # fails early if a directory cannot have this name
        if not self.space:
            raise SweepError("the space is empty: there is nothing to try")
        for key, dimension in self.space.items():
            if key in _OF_EACH_TRIAL:
                raise SweepError(f"{key} cannot be swept: each trial has its own experiment, named by its number")
            read = self.config.copy()
            found = []
            for text in dimension.texts:
                read.override(f"{key}={text}")
                found.append(repr(read[key]))
            if len(set(found)) < len(found):
                raise SweepError(f"{key}: a value is given twice among {', '.join(found)}")
            if dimension.kind in ("float", "log"):
                try:
                    read.override(f"{key}={math.nextafter(*dimension.values)!r}")
                except ConfigError as error:
                    raise SweepError(f"{key} takes whole numbers only: use int:LOW..HIGH or a list") from error
        for values in self.grid or [{key: dimension.values[0] for key, dimension in self.space.items()}]:
            tried = self.config.copy()
            tried.update(values)
            tried.validate()
            from_config(tried)

    @property
    def name(self) -> str:
        """The name of the sweep, and the first part of the names of its trials."""
        return str(self.config["trainer.experiment_name"])

    @property
    def directory(self) -> Path:
        """The directory of the trials' experiments."""
        return Experiment(self.config["trainer.experiment_base_dir"]).directory

    @property
    def locks(self) -> Path:
        """The directory of the locks, which all processes of the sweep must see."""
        return self.directory / f".{self.name}.sweep"

    @cached_property
    def grid(self) -> list[dict[str, Any]] | None:
        """Every combination, by trial number (the last key changes fastest); None if trials are sampled."""
        if self.trials is not None:
            return None
        combinations = itertools.product(*(dimension.values for dimension in self.space.values()))
        return [dict(zip(self.space, values, strict=True)) for values in combinations]

    @property
    def total(self) -> int:
        """The number of trials."""
        return self.trials or len(self.grid or ())

    def experiment(self, number: int) -> Experiment:
        """Return the experiment of a trial."""
        return Experiment(self.directory / f"{self.name}-{number}")

    def rank(self, objective: float | None) -> float:
        """Return a number that is smaller for a better objective."""
        return (objective or 0.0) * (1 if self.mode == "min" else -1)

    def settings(self) -> dict[str, Any]:
        """Return the settings that all commands of a sweep must share, as JSON data."""
        plain = self.config.to_plain()
        kept = {key: value for key, value in plain.items() if key not in _OF_EACH_COMMAND and key not in self.space}
        space = {f"{key} in the space": str(dimension) for key, dimension in self.space.items()}
        sampled = "every combination" if self.trials is None else "sampled"
        return {**kept, **space, "trials": sampled, "mode": self.mode, "objective": self.objective}
