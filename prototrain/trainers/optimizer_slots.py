"""The variables of a trainer's optimizers, also when other weights are trained than before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.optimizers import named_slots, slot_stem
from prototrain.trainers.optimization import optimizer_settings


class OptimizerSlots:
    """Registers optimizers in `trainer.state`.

    What an optimizer has of a weight that is not trained any more, or not yet, rests in the state as an array. So a run
    that freezes layers or thaws them goes on from each of its checkpoints, and with the moments that it had.

    Args:
        state: `trainer.state`.

    Attributes:
        settings: what the optimizers were made with, by their names there; see `optimizer_settings`.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self.settings: dict[str, dict[str, Any]] = {}
        self._state = state
        self._in_use: set[str] = set()
        self._resting: set[str] = set()

    def register(self, name: str, optimizer: keras.optimizers.Optimizer, trained: Mapping[str, Any]) -> None:
        """Have the variables of a built optimizer saved as ``<name>/...``.

        Args:
            name: unique among the trainer's optimizers.
            optimizer: has the variables.
            trained: see `named_slots`.
        """
        self.settings.setdefault(name, optimizer_settings(optimizer))  # as it was made first
        for slot, variable in named_slots(optimizer, trained):
            self._state[f"{name}/{slot}"] = variable
            self._in_use.add(f"{name}/{slot}")

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Let optimizers be made anew meanwhile; they go on with what the old ones had."""
        known = self._in_use | self._resting
        values = {name: np.array(tf.convert_to_tensor(self._state[name])) for name in known}
        self._in_use = set()
        yield
        self._resting = known - self._in_use
        for name, value in values.items():
            if name in self._resting:
                self._state[name] = value
            else:
                self._state[name].assign(value)

    @contextmanager
    def fitted_to(self, saved: Mapping[str, Mapping[str, Any]], weights: Mapping[str, bool]) -> Iterator[None]:
        """Let the state be that of a checkpoint which was written while other weights were trained.

        Slots of weights that are not trained now come to rest in the state. Those of weights that were not trained then
        are out of the state meanwhile, and keep their values.

        Args:
            saved: "shape" and "dtype" of what the checkpoint holds, by name.
            weights: whether a weight is trained, by name.
        """
        kept: dict[str, Any] = {}
        for optimizer in self.settings:
            starts = {weight: f"{optimizer}/{slot_stem(weight)}_" for weight in weights}
            then = {weight for weight, start in starts.items() if any(name.startswith(start) for name in saved)}
            rest = tuple(starts[weight] for weight in then if not weights[weight])
            for name in saved:
                if name.startswith(rest) and name not in self._state:
                    self._state[name] = np.zeros(saved[name]["shape"], saved[name]["dtype"])
                    self._resting.add(name)
            fresh = tuple(starts[weight] for weight in weights.keys() - then) if then else ()
            kept.update({name: self._state[name] for name in self._in_use if name.startswith(fresh)})
        for name in kept:
            del self._state[name]
        try:
            yield
        finally:
            self._state.update(kept)
