"""What trainers have in common whose updates come from several places that do not wait for each other."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from prototrain.experiment import Experiment
from prototrain.model.placement import Placement
from prototrain.step.arithmetic import divide
from prototrain.trainers.tower import TowerTrainer

if TYPE_CHECKING:
    from prototrain.model import ModelProtocol


class OwnPaceTrainer(TowerTrainer):
    """Base of trainers in which a step is one update by one of several towers or workers, with a whole batch.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        places: how many towers or workers there are.
        placement: the towers.
        scale_gradient: whether to divide each gradient by `places`, so that a learning rate means what it means with
            synchronous towers.
        experiment: the directory of the run, if it is to leave anything behind.

    Attributes:
        order_of_updates: the order in which the updates come, by a name that no other run has.
    """

    measures_xla = False
    may_set_trainable = False

    def __init__(
        self,
        model: ModelProtocol,
        places: int,
        placement: Placement,
        *,
        scale_gradient: bool = True,
        experiment: Experiment | str | Path | None = None,
    ) -> None:
        self.order_of_updates = f"that of run {uuid.uuid4().hex[:8]}"
        super().__init__(model, experiment=experiment, placement=placement)
        if scale_gradient and places > 1:
            self.gradient_processors.insert(0, DivideGradients(places))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "global batch": None, "batch": self.global_batch}


class DivideGradients:
    """A gradient processor for updates that come from several places at once.

    Args:
        places: how many; gradients are divided by this.
    """

    def __init__(self, places: int) -> None:
        self._places = places

    def __call__(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        divisor = tf.constant(np.float32(self._places))
        return [(divide(gradient, divisor), variable) for gradient, variable in pairs]
