"""The experiment directory: its files, its lock, the record of a run, and the sources and environment of a run.

This package needs no TensorFlow. `prototrain.experiment.facts` records the sources and the environment.
"""

from prototrain.experiment.experiment import Experiment
from prototrain.experiment.facts import home_of, source_of
from prototrain.experiment.names import STEP, checkpoint_steps

__all__ = ["STEP", "Experiment", "checkpoint_steps", "home_of", "source_of"]
