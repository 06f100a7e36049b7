"""Checks at the start of a run that all workers have the same config, code, data and experiment directory."""

from __future__ import annotations

import platform
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

import prototrain
from prototrain.data.batches import digest_of
from prototrain.distributed.sync import WorkerSync
from prototrain.errors import ConfigError, ExperimentError
from prototrain.experiment import Experiment, source_of
from prototrain.experiment.facts import differences, file_digests
from prototrain.system.files import write_atomic

if TYPE_CHECKING:
    from prototrain.model import ModelProtocol
    from prototrain.model.built import BuiltModel

SEEN_SECONDS = 10.0  # the time after which a file that the chief has written must be visible on a network file system
_OF_EACH_SHARE = ("stages", "batches per pass", "batch size", "file names", "file sizes")


def require_same(sync: WorkerSync, what: str, mine: dict[str, Any]) -> None:
    """Raise a `ConfigError` that names the workers whose JSON value differs from the chief's."""
    told = sync.exchange(mine)
    found = {index: differences(told[0], other) for index, other in enumerate(told)}
    lines = [f"worker {index} has {'; '.join(different)}" for index, different in found.items() if different]
    if lines:
        cure = "start all of them with the same command, code and data"
        raise ConfigError(f"the workers disagree on {what}: {'; '.join(lines)} (the chief's value first); {cure}")


def require_same_settings(sync: WorkerSync, model: ModelProtocol, trainer: object) -> None:
    """Check that all workers have the same config, code and versions; see `require_same`."""
    require_same(sync, "the config", model.config.facts())
    source = model.source if hasattr(model, "source") else source_of(model)
    own = type(trainer).__module__
    code = {
        "model": file_digests([source]),
        "trainer": own if own.startswith("prototrain.") else file_digests([source_of(trainer)]),
    }
    versions = {"prototrain": prototrain.__version__, "tensorflow": tf.__version__, "keras": keras.__version__}
    require_same(sync, "the code", {"code of the": code, "version of": versions})


def require_same_data(sync: WorkerSync, built: BuiltModel) -> str | None:
    """Check that all workers describe the training data in the same way; returns a warning if first batches are odd."""
    own = built.data.share.is_divided  # each worker may then have a different amount of data
    described = {name: fact for name, fact in built.data.fingerprint.items() if not (own and name in _OF_EACH_SHARE)}
    require_same(sync, "the training data", described)
    first = sync.exchange(digest_of(built.data.first_batch))
    is_odd = [first.count(digest) > 1 if own else digest != first[0] for digest in first]
    names = ", ".join(f"worker {index}" for index, odd in enumerate(is_odd) if odd)
    if not names or (own and built.data.is_live_data):
        return None
    if own:
        return f"{names} begin with the same batch, although each should have different data"
    return f"the first batch of {names} is not the chief's, so each worker takes its part of another batch"


def require_shared(sync: WorkerSync, experiment: Experiment | None) -> None:
    """Check that all workers see the chief's experiment directory, in which the chief writes a token.

    All workers see the same URL. They download the files that the run continues from.

    Raises:
        ExperimentError: a worker does not see the directory, or the chief cannot use it.
    """
    token, is_chief, is_url = "", sync.worker.is_chief, experiment is not None and experiment.remote is not None
    if is_chief and experiment is not None:
        token = uuid.uuid4().hex
        try:
            if experiment.remote is not None:
                experiment.lock()
                experiment.remote.finish(print)
            experiment.directory.mkdir(parents=True, exist_ok=True)
            write_atomic(experiment.token, token)
        except OSError as error:
            why = f"{error.strerror} ({error.filename})"
            raise ExperimentError(f"cannot use the experiment directory {experiment}: {why}") from error
    mine = None if experiment is None else str(experiment if is_url else experiment.directory.absolute())
    told = sync.exchange([token, mine, platform.node()])
    token, chiefs, node = told[0]
    end = time.monotonic() + SEEN_SECONDS
    while not (sees := is_chief or not token or _sees(experiment, token, chiefs)) and time.monotonic() < end:
        time.sleep(0.1)
    if sees and experiment is not None and not is_chief:
        experiment.fetch(whole=True)
    blind = [index for index, (seen,) in enumerate(sync.gather([sees])) if not seen]
    if is_chief and experiment is not None:
        with suppress(OSError):
            experiment.token.unlink(missing_ok=True)
    if blind:
        where = "; ".join(f"worker {index} has {told[index][1] or 'none'} on {told[index][2]}" for index in blind)
        cure = "set trainer.experiment_base_dir to a path on storage that all of them share"
        raise ExperimentError(f"the workers do not see the chief's directory {chiefs} on {node}: {where}; {cure}")


def _sees(experiment: Experiment | None, token: str, chiefs: str) -> bool:
    if experiment is None or experiment.remote is not None:
        return experiment is not None and str(experiment) == chiefs
    with suppress(OSError):
        return experiment.token.read_text(encoding="utf-8") == token
    return False
