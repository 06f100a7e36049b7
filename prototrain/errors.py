"""Every exception that prototrain raises on purpose.

A `PrototrainError` carries one clear line for the user: what is wrong, where, and what to do. The command line prints
that line without a traceback and exits with 1. Anything else that escapes is a bug, of ours or of the user's code, and
keeps its traceback.
"""

from __future__ import annotations


class StopTraining(Exception):
    """Raised by a callback or a trainer to end the run normally; the message says why."""


class PrototrainError(Exception):
    """Base of all errors that have one clear line for the user."""


class ConfigError(PrototrainError):
    """A configuration key or value is wrong."""


class ModelError(PrototrainError):
    """A model cannot be loaded or built, or breaks the model protocol."""


class DataError(PrototrainError):
    """A dataset is missing, empty or malformed."""


class CallbackError(PrototrainError):
    """A callback is used in a way that cannot work."""


class ExperimentError(PrototrainError):
    """An experiment directory cannot be used."""


class StorageError(PrototrainError):
    """A URL names no storage that can be used, or the storage does not answer."""


class CheckpointError(PrototrainError):
    """A checkpoint cannot be written, is damaged, or does not fit the run."""


class StepError(PrototrainError):
    """A training step failed; the message names the step, the stage and the cause."""


class OutOfMemoryError(PrototrainError):
    """Memory ran out; the message says where, and from which checkpoint the run can continue."""


class NonFiniteError(PrototrainError):
    """A loss, a gradient, a learning rate or a variable became NaN or infinite."""


class ClusterError(PrototrainError):
    """Of several workers one is missing, failed, silent or different; the message names it and says what it said."""


class SweepError(PrototrainError):
    """A sweep cannot start or continue: a wrong space, another sweep of the same name, a storage out of reach."""
