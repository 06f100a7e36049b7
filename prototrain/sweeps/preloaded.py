"""Imported once by the server that forks trials, which then find TensorFlow imported; that takes seconds for each."""

import gc

from prototrain.system.quiet import import_tensorflow

import_tensorflow()

import prototrain.launch  # noqa: E402
import prototrain.sweeps.processes  # noqa: E402
import prototrain.trainers.multi_worker  # noqa: E402, F401

gc.collect()
gc.freeze()  # what all forked processes share is not copied by the collections of each
