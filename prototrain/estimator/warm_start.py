"""What a new run takes over from a checkpoint, by names and by words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.errors import CheckpointError, ConfigError, ModelError
from prototrain.estimator.specs import VocabInfo, WarmStartSettings
from prototrain.estimator.vocabulary import UNREADABLE, read_vocabulary
from prototrain.model.built import BuiltModel
from prototrain.system.tracebacks import first_line

Arrays = dict[str, np.ndarray[Any, Any]]


def warm_start(built: BuiltModel, settings: WarmStartSettings) -> str:
    """Give a model the variables that a checkpoint has.

    Returns:
        a table of what became of each variable.

    Raises:
        CheckpointError: there is nothing readable, it lacks a variable that is named, or nothing in it matches.
        ModelError: the model lacks one.
        ConfigError: a vocabulary does not fit.
    """
    ignore = [f"(?:{settings.exclude}).*"]  # from the start of a name
    return built.load_weights(
        settings.ckpt_to_initialize_from, ignore=ignore, prepare=partial(_as_here, settings, built.variables)
    )


def _as_here(settings: WarmStartSettings, variables: Mapping[str, Any], there: Arrays) -> Arrays:
    """The arrays of a checkpoint by the names, and in the rows, that the variables here have."""
    names, vocabularies = settings.var_name_to_prev_var_name or {}, settings.var_name_to_vocab_info or {}
    unknown = [name for name in (*names, *vocabularies) if name not in variables]
    if unknown:
        raise ModelError(f"WarmStartSettings: model_fn has no variable {unknown[0]!r}; it has {', '.join(variables)}")
    lacking = [old for old in (*names.values(), *(names.get(name, name) for name in vocabularies)) if old not in there]
    if lacking:
        raise CheckpointError(
            f"WarmStartSettings: there is no variable {lacking[0]!r} in {settings.ckpt_to_initialize_from}; there are "
            f"{', '.join(sorted(there))}"
        )
    found = {**there, **{name: there[old] for name, old in names.items()}}
    for name, info in vocabularies.items():
        found[name] = _by_words(name, VocabInfo(*_fields(info)), found[name], list(variables[name].shape))
    return found


def _fields(info: Any) -> Sequence[Any]:
    if isinstance(info, VocabInfo):
        return list(vars(info).values())
    if isinstance(info, tuple) and hasattr(info, "_fields"):  # tf.compat.v1.train.VocabInfo, in the same order
        return info
    raise ConfigError(f"var_name_to_vocab_info takes a prototrain.estimator.VocabInfo, not {type(info).__name__}")


def _by_words(name: str, info: VocabInfo, old: np.ndarray[Any, Any], shape: list[int]) -> np.ndarray[Any, Any]:
    """The rows of an array for other words."""
    words = _words(name, info.new_vocab, info.new_vocab_size)
    before = _words(name, info.old_vocab, info.old_vocab_size)
    axis, wanted = info.axis, len(words) + info.num_oov_buckets
    if len(shape) <= axis or shape[axis] != wanted or old.ndim != len(shape) or old.shape[axis] < len(before):
        raise ConfigError(
            f"var_name_to_vocab_info[{name!r}]: {len(words)} words and {info.num_oov_buckets} buckets here, "
            f"{len(before)} words there do not fit {name} of shape {tuple(shape)} here, {old.shape} there"
        )
    if info.backup_initializer is None:
        new = np.zeros(shape, old.dtype)
    else:
        new = np.array(tf.convert_to_tensor(info.backup_initializer(shape)), old.dtype)
    place = {word: number for number, word in enumerate(before)}
    pairs = [(number, place[word]) for number, word in enumerate(words) if word in place]
    if [*old.shape[:axis], *old.shape[axis + 1 :]] != [*shape[:axis], *shape[axis + 1 :]]:
        return old  # of another width: the table of what was taken over says so
    to, of = (list(numbers) for numbers in zip(*pairs, strict=True)) if pairs else ([], [])
    rows, taken = np.moveaxis(new, axis, 0), np.moveaxis(old, axis, 0)
    rows[to] = taken[of]
    return new


def _words(name: str, given: str | Path | Sequence[str], size: int) -> list[str]:
    """So many words of a vocabulary; all if -1."""
    if isinstance(given, str | Path):
        try:
            words = read_vocabulary(given)
        except UNREADABLE as error:
            raise ConfigError(
                f"var_name_to_vocab_info[{name!r}]: cannot read the vocabulary {given}: {first_line(error)}"
            ) from error
    else:
        words = [str(word) for word in given]
    if size > len(words) or (size < 0 and size != -1):
        raise ConfigError(f"var_name_to_vocab_info[{name!r}]: the vocabulary has {len(words)} words, not {size}")
    return words if size == -1 else words[:size]
