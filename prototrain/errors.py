"""The exceptions of prototrain.

The message of a `PrototrainError` is one line for the user: what is wrong, where, and what to do. The command line
prints it without a traceback and exits with 1. Any other exception is a bug in prototrain or in the user's code, and is
printed with its traceback.
"""

from __future__ import annotations


class StopTraining(Exception):
    """Raised by a callback or a trainer to end the run normally; the message gives the reason."""


class PrototrainError(Exception):
    """Base class of all errors that are reported to the user in one line."""


class ConfigError(PrototrainError):
    """A configuration key or value is wrong."""


class ModelError(PrototrainError):
    """A model cannot be loaded or built, or breaks the model protocol."""


class DataError(PrototrainError):
    """A dataset is missing, empty or malformed."""


class CallbackError(PrototrainError):
    """A callback is used incorrectly."""


class ExperimentError(PrototrainError):
    """An experiment directory cannot be used."""


class StorageError(PrototrainError):
    """The storage of a URL cannot be used or does not answer."""


class CheckpointError(PrototrainError):
    """A checkpoint cannot be written, is damaged, or does not fit the run."""


class StepError(PrototrainError):
    """A training step failed; the message names the step, the stage and the cause."""


class NonFiniteError(PrototrainError):
    """A loss, a gradient, a learning rate or a variable became NaN or infinite."""


class ClusterError(PrototrainError):
    """A worker is missing, failed, does not respond or differs; the message names it and quotes its error."""


class SweepError(PrototrainError):
    """A sweep cannot start or continue: its space is invalid, its name is taken, or its storage is unreachable."""
