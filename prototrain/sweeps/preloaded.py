"""Imports TensorFlow in the server that forks the trials, which saves seconds for each trial."""

import gc

from prototrain.system.terminal import import_tensorflow

import_tensorflow()

import prototrain.launch  # noqa: E402
import prototrain.sweeps.processes  # noqa: E402
import prototrain.trainers.multi_worker  # noqa: E402, F401

gc.collect()
gc.freeze()  # keeps garbage collection in the forked processes from copying shared memory
