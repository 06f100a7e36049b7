"""A run's directory: where everything lies, the lock, what became of the run, and what it was made from.

Needs no TensorFlow. What "source", "environment", "origin", "provenance" and "fingerprint" mean stands at the top of
`prototrain.experiment.provenance`.
"""

from prototrain.experiment.experiment import Experiment
from prototrain.experiment.names import STEP, checkpoint_steps
from prototrain.experiment.provenance import home_of, source_of

__all__ = ["STEP", "Experiment", "checkpoint_steps", "home_of", "source_of"]
