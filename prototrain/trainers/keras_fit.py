"""The arguments of `keras.Model.fit`, as a trainer takes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from prototrain.callbacks import KerasCallback, ModelSaver, ProgressBar, SaveOnExit, ScalarPrinter, Validation
from prototrain.callbacks.base import Callback, innermost
from prototrain.errors import CallbackError, DataError
from prototrain.trainers.keras_data import Data


def fit_data(x: Any, y: Any, sample_weight: Any, validation_split: float) -> tuple[Data, Data | None]:
    """The data to train on, and what `validation_split` holds out of it, as `made` takes them.

    Raises:
        DataError: labels beside data that has its own, or a split of what is not arrays.
    """
    if callable(x) or isinstance(x, tf.data.Dataset | keras.utils.PyDataset | Iterator):
        if y is not None or sample_weight is not None or validation_split:
            raise DataError(f"y, sample_weight and validation_split are for arrays; x is a {type(x).__name__}")
        return x, None
    data = (x, y, sample_weight) if sample_weight is not None else (x,) if y is None else (x, y)
    if not validation_split:
        return data, None
    if not 0 < validation_split < 1:
        raise DataError(f"validation_split must be between 0 and 1, got {validation_split!r}")
    size = len(next(part for part in keras.tree.flatten(data) if part is not None))
    at = int(size * (1 - validation_split))
    if not 0 < at < size:
        raise DataError(f"validation_split={validation_split} leaves nothing of {size} examples on one side")

    def parts(start: int, end: int) -> Any:
        return keras.tree.map_structure(lambda part: None if part is None else part[start:end], data)

    return parts(0, at), parts(at, size)


def fit_callbacks(
    callbacks: Any,
    history: keras.callbacks.History,
    *,
    verbose: Any,
    saves: bool,
    validation: tuple[int, int] | None,
) -> list[Callback]:
    """The callbacks of a `fit`: what it does itself, and the user's, of Keras or of prototrain.

    Args:
        callbacks: the user's: one, or a list of them, perhaps with lists in it.
        history: is filled.
        verbose: "auto" or 1 for a progress bar, 2 for a line per epoch, 0 for neither.
        saves: whether to write a checkpoint at the end of each epoch and at the end of the run.
        validation: of how many batches (0: all), and after how many epochs each; None for none.

    Raises:
        CallbackError: one of the callbacks is none.
    """
    given: list[Callback] = []
    of_kind: Counter[str | None] = Counter()
    for callback in keras.tree.flatten(callbacks or ()):
        if isinstance(callback, keras.callbacks.CallbackList):
            raise CallbackError("fit: give the callbacks themselves, not a CallbackList")
        if isinstance(callback, keras.callbacks.Callback):
            wrapped = KerasCallback(callback)
            of_kind[wrapped.state_key] += 1
            if (number := of_kind[wrapped.state_key]) > 1:  # the second LambdaCallback, for example
                wrapped.state_key = f"{wrapped.state_key} {number}"
            given.append(wrapped)
        elif isinstance(callback, Callback):
            given.append(callback)
        else:
            raise CallbackError(f"fit: {callback!r} is a callback neither of Keras nor of prototrain")
    kinds = {type(innermost(callback)) for callback in given}
    found: list[Callback] = []
    if validation not in (None, (0, 1)) and Validation in kinds:
        raise CallbackError(
            "fit: a Validation of your own is in the list; say there how often and how much, and leave out "
            "validation_steps and validation_freq"
        )
    if validation is not None and Validation not in kinds:
        batches, epochs = validation
        validates = Validation(batches=batches)
        validates.at_end = False  # the last epoch is validated only in its turn, as by Keras
        found.append(validates.every(epochs=epochs))
    if verbose in ("auto", 1, True):
        found.append(ProgressBar())
    elif verbose:
        found.append(ScalarPrinter().every(epochs=1))
    if saves:
        found += [kind() for kind in (ModelSaver, SaveOnExit) if kind not in kinds]
    # Behind the user's, as in Keras: it takes what they have put into the logs.
    return [*found, *given, KerasCallback(history, state_key="keras.History/fit")]
