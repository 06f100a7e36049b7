"""A run's directory: where everything lies, the lock, what became of the run, and what it was made from.

Needs no TensorFlow. What a run is made from is recorded by `prototrain.experiment.facts`.
"""

from prototrain.experiment.experiment import Experiment
from prototrain.experiment.facts import home_of, source_of
from prototrain.experiment.names import STEP, checkpoint_steps

__all__ = ["STEP", "Experiment", "checkpoint_steps", "home_of", "source_of"]
