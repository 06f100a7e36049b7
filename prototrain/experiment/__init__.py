"""The experiment directory: its files, its lock, the record of a run, and the sources and environment of a run.

This package needs no TensorFlow. `prototrain.experiment.facts` records the sources and the environment.
"""

from prototrain.experiment.experiment import STEP, Experiment, checkpoint_steps
from prototrain.experiment.facts import home_of, source_of

__all__ = ["STEP", "Experiment", "checkpoint_steps", "home_of", "source_of"]
