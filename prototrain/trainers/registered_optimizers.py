"""A trainer's optimizers and their variables, also when other weights are trained than before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.errors import ConfigError
from prototrain.model.placement import Placement
from prototrain.optimizers import named_slots, slot_stem
from prototrain.trainers.optimization import optimizer_settings


class RegisteredOptimizers:
    """The optimizers whose variables are in `trainer.state`.

    What an optimizer has of a weight that is not trained any more, or not yet, rests in the state as an array. So a run
    that freezes layers or thaws them goes on from each of its checkpoints, and with the moments that it had.

    Args:
        state: `trainer.state`.
        placement: the towers.
        keras_variables: from variables of the model to the Keras variables that hold them, by name.
        check: raises an error for an optimizer that the trainer cannot use.

    Attributes:
        settings: what the optimizers were made with, by their names there; see `optimizer_settings`.
    """

    def __init__(
        self,
        state: dict[str, Any],
        placement: Placement,
        keras_variables: Callable[[Iterable[tf.Variable]], dict[str, Any]],
        check: Callable[[keras.optimizers.Optimizer], None],
    ) -> None:
        self._check = check
        self._placement = placement
        self._keras_variables = keras_variables
        self.settings: dict[str, dict[str, Any]] = {}
        self._optimizers: dict[str, keras.optimizers.Optimizer] = {}
        self._state = state
        self._in_use: set[str] = set()
        self._resting: set[str] = set()

    def register(
        self, name: str, optimizer: keras.optimizers.Optimizer, variables: Iterable[tf.Variable] | None = None
    ) -> None:
        """Have the variables of an optimizer saved as ``<name>/...``; see `TowerTrainer.register_optimizer`."""
        self._check(optimizer)
        if self._placement.towers > 1 and optimizer.gradient_accumulation_steps:
            raise ConfigError(
                f"{optimizer.name}: with several towers an optimizer cannot have gradient_accumulation_steps; use "
                "model.accumulate_steps, which accumulates within a step"
            )
        trained = {} if variables is None else self._keras_variables(variables)
        if variables is not None:
            optimizer.build(list(trained.values()))
        self._optimizers[name] = optimizer
        self.settings.setdefault(name, optimizer_settings(optimizer))  # as it was made first
        for slot, variable in named_slots(optimizer, trained):
            self._state[f"{name}/{slot}"] = variable
            self._in_use.add(f"{name}/{slot}")

    def adopt(self, attributes: Mapping[str, Any], trained: Iterable[tf.Variable]) -> None:
        """Build and register the optimizers that a trainer has as attributes, for a `train_step` of its own.

        Keras would make their variables when they are first used, which is after a checkpoint is restored.
        """
        known = {id(entry) for entry in self._state.values()}
        for name, optimizer in attributes.items():
            if isinstance(optimizer, keras.optimizers.Optimizer) and id(optimizer.variables[0]) not in known:
                with self._placement.scope():
                    self.register(name, optimizer, None if optimizer.built else trained)

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
    def fitted_to(
        self,
        saved: Mapping[str, Mapping[str, Any]],
        weights: Mapping[str, bool],
        made_with: Mapping[str, Mapping[str, Any]],
        *,
        others: bool,
    ) -> Iterator[None]:
        """Let the state be that of a checkpoint which was written while other weights were trained, or by optimizers
        that were made with something else: what is new of these begins anew, and so does a learning rate.

        Slots of weights that are not trained now come to rest in the state. Those of weights that were not trained then
        are out of the state meanwhile, and keep their values.

        Args:
            saved: "shape" and "dtype" of what the checkpoint holds, by name.
            weights: whether a weight is trained, by name.
            made_with: the `settings` of the run that wrote it.
            others: whether an optimizer may have other variables than that of the checkpoint.
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
        more, dropped = self._fit_changed(saved, made_with if others else {})
        rates = self._changed_rates(made_with)
        try:
            yield
        finally:
            for name in dropped:
                del self._state[name]
            self._state.update(kept | more)
        for name, rate in rates.items():
            self._optimizers[name].learning_rate = rate

    def _fit_changed(
        self, saved: Mapping[str, Mapping[str, Any]], made_with: Mapping[str, Mapping[str, Any]]
    ) -> tuple[dict[str, Any], list[str]]:
        """Add to the state what a checkpoint has of optimizers that are made with something else now.

        Returns:
            what the checkpoint has not, by name; and the names of what was added.
        """
        kept: dict[str, Any] = {}
        dropped: list[str] = []
        for optimizer, now in self.settings.items():
            then = made_with.get(optimizer)
            if then is None or _without_rate(then) == _without_rate(now):
                continue
            is_other = then.get("class") != now["class"]
            mine = [name for name in self._state if name.startswith(f"{optimizer}/") and name in self._in_use]
            kept.update({name: self._state.pop(name) for name in mine if is_other or name not in saved})
            for name in saved:
                if name.startswith(f"{optimizer}/") and name not in self._state:
                    self._state[name] = np.zeros(saved[name]["shape"], saved[name]["dtype"])
                    dropped.append(name)
        return kept, dropped

    def _changed_rates(self, made_with: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        """The learning rates that optimizers are made with, where they were made with another one then."""
        found = {}
        for name, now in self.settings.items():
            then, rate = made_with.get(name, {}).get("learning_rate"), now.get("learning_rate")
            if isinstance(then, float) and isinstance(rate, float) and then != rate:
                found[name] = rate
        return found


def _without_rate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without a learning rate that is a number, which leaves the variables of the optimizer the same."""
    return {key: value for key, value in settings.items() if key != "learning_rate" or not isinstance(value, float)}
