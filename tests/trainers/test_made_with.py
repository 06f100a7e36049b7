"""What of a trainer of the user's own counts for a resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import SimpleTrainer, Trainer
from prototrain.trainers.made_with import made_with
from tests.tiny import tiny_model

RATE = 0.5


class Holds(Trainer):
    """Has what it is given as an attribute, or in its state."""

    def __init__(self, *, state: Any = None, **given: Any) -> None:
        super().__init__()
        self.state["entry"] = state
        vars(self).update(given)

    def run_step(self) -> None:
        pass


class Scales(SimpleTrainer):
    """Trains with a step of its own."""

    def __init__(self, scale: float) -> None:
        super().__init__(tiny_model())
        self.scale = scale

    def train_step(self, inputs: Any) -> Any:
        return self.scale


class Agent:
    """Has a state, and what it was made with."""

    def __init__(self, rate: float, seed: int = 0) -> None:
        self.rate = rate
        self._steps = seed
        self.table = np.random.default_rng(seed).normal(size=3)

    def state_dict(self) -> dict[str, Any]:
        return {"table": self.table, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.table = state["table"]


class Slotted:
    """Has no dict, and cannot say what its state is."""

    __slots__ = ("rate",)

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("not yet")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _defined_here(number: int) -> Trainer:
    first, second = (lambda: 1.5), (lambda: 2.5)

    class Here(Trainer):
        run_step = first if number == 1 else second

    return Here()


def _patched(function: Callable[[], float]) -> Trainer:
    class Patched(Trainer):
        def run_step(self) -> None:
            pass

    Patched.reward = function  # type: ignore[attr-defined]
    return Patched()


def _net(activation: str, *, trainable: bool = True, seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, activation=activation)])
    net.layers[0].trainable = trainable
    return net


CHANGED: dict[str, tuple[Callable[[], Trainer], Callable[[], Trainer]]] = {
    "attribute": (lambda: Holds(rate=1), lambda: Holds(rate=2)),
    "an attribute that prototrain has of other objects": (lambda: Holds(stage=1), lambda: Holds(stage=2)),
    "of a compiled trainer": (lambda: Scales(1.0), lambda: Scales(2.0)),
    "class of a function": (lambda: _defined_here(1), lambda: _defined_here(2)),
    "method": (lambda: _patched(lambda: 1.5), lambda: _patched(lambda: 2.5)),
    "layer": (lambda: Holds(state=_net("relu")), lambda: Holds(state=_net("tanh"))),
    "frozen layer": (lambda: Holds(state=_net("relu")), lambda: Holds(state=_net("relu", trainable=False))),
    "optimizer": (
        lambda: Holds(state=keras.optimizers.SGD(0.1, momentum=0.9)),
        lambda: Holds(state=keras.optimizers.SGD(0.1, momentum=0.5)),
    ),
    "object": (lambda: Holds(state=Agent(0.9)), lambda: Holds(state=Agent(0.5))),
    "object with slots": (lambda: Holds(state=Slotted(0.9)), lambda: Holds(state=Slotted(0.5))),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_a_trainer_is_made_with_counts(name: str) -> None:
    one, again, other = CHANGED[name][0](), CHANGED[name][0](), CHANGED[name][1]()
    assert made_with(one) == made_with(again) != made_with(other)


SAME: dict[str, tuple[Callable[[], Trainer], Callable[[], Trainer]]] = {
    "weights": (lambda: Holds(state=_net("relu")), lambda: Holds(state=_net("relu", seed=1))),
    "rate": (lambda: Holds(state=keras.optimizers.SGD(0.1)), lambda: Holds(state=keras.optimizers.SGD(0.2))),
    "state of an object": (lambda: Holds(state=Agent(0.9)), lambda: Holds(state=Agent(0.9, seed=1))),
    "variable": (lambda: Holds(state=tf.Variable(1.0)), lambda: Holds(state=tf.Variable(2.0))),
    "number": (lambda: Holds(state=1.0), lambda: Holds(state=2.0)),
}


@pytest.mark.parametrize("name", SAME)
def test_what_a_checkpoint_brings_back_does_not_count(name: str) -> None:
    one, other = (make() for make in SAME[name])
    assert made_with(one) == made_with(other) is not None


def test_a_trainer_of_prototrain_has_nothing_of_the_user_s() -> None:
    assert made_with(SimpleTrainer(tiny_model())) is None
