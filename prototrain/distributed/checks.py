"""Checks at the start of a run that all workers have the same config, code, data and experiment directory."""

from __future__ import annotations

import platform
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

import prototrain
from prototrain.data.batches import digest_of
from prototrain.data.pipeline import first_difference
from prototrain.distributed.sync import WorkerSync
from prototrain.errors import ConfigError, ExperimentError
from prototrain.experiment import Experiment, source_of
from prototrain.experiment.facts import differences, file_digests
from prototrain.system.files import write_atomic

if TYPE_CHECKING:
    from prototrain.model import ModelProtocol
    from prototrain.model.built import BuiltModel

SEEN_SECONDS = 10.0
"""In which a file that the chief has written is visible on a network file system."""


def require_same(sync: WorkerSync, what: str, mine: dict[str, Any]) -> None:
    """Compare a value that JSON can hold.

    Raises:
        ConfigError: a worker has another one than the chief, on all workers.
    """
    chief, *others = sync.exchange(mine)
    _refuse(what, [differences(chief, other) for other in others])


def require_same_settings(sync: WorkerSync, model: ModelProtocol, trainer: object) -> None:
    """Compare config, code and versions; see `require_same`."""
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
    """Compare the description and the first batch of the training data; see `require_same`.

    Returns:
        a warning if the first batches are not what they should be, although the descriptions are the same.
    """
    share, fingerprint, files = built.data.share, built.data.fingerprint, built.data_files()
    if share.is_own:  # only its owner knows how much there is
        fingerprint |= {"stages": [], "batches per pass": None, "batch size": None}
        fingerprint |= dict.fromkeys(("directory", "file names", "file sizes"), "")
        files = files if share.sharding == "files" else {}
    chief, *others = sync.exchange({**fingerprint, "files": files, "first batch": digest_of(built.data.first_batch)})
    first = [one.pop("first batch") for one in (chief, *others)]
    stages, chiefs_files = chief.pop("stages"), chief.pop("files")
    found = []
    for other in others:
        stage = first_difference(stages, other.pop("stages"))
        common = {name: entry for name, entry in other.pop("files").items() if name in chiefs_files}
        found.append(differences(chief, other) + ([] if stage is None else [stage]))
        found[-1] += differences({"file": {name: chiefs_files[name] for name in common}}, {"file": common})
    _refuse("the training data", found)
    if share.is_own:
        same = [str(index) for index, digest in enumerate(first) if first.count(digest) > 1]
        if built.data.is_made_up or not same:
            return None
        return f"workers {', '.join(same)} begin with the same batch, although each should have different data"
    unlike = [f"worker {index}" for index, digest in enumerate(first) if digest != first[0]]
    if not unlike:
        return None
    return (
        f"the first batch of {', '.join(unlike)} is not that of the chief, although the data is described in the same "
        "way: each worker takes its part of another batch"
    )


def _refuse(what: str, found: list[list[str]]) -> None:
    lines = [f"worker {index} has {'; '.join(different)}" for index, different in enumerate(found, 1) if different]
    if lines:
        raise ConfigError(
            f"the workers disagree on {what}: {'; '.join(lines)} (the chief's value comes first); start all of them "
            "with the same command, code and data"
        )


def require_shared(
    sync: WorkerSync,
    experiment: Experiment | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Check that all workers see the experiment directory that the chief writes to, by a token that it writes there.

    Args:
        sync: the other workers.
        experiment: this worker's.
        clock: returns the time in seconds.
        sleep: waits.

    Raises:
        ExperimentError: a worker does not see it, on all workers; or the chief cannot write there.
        ClusterError: a worker has failed.
    """
    token, is_chief = "", sync.worker.is_chief
    if is_chief and experiment is not None:
        token = uuid.uuid4().hex
        try:
            if experiment.remote is not None:  # from there the others fetch what the run continues from
                experiment.lock()
                experiment.remote.finish(print)
                experiment.remote.storage.write(".token", token.encode())
            experiment.directory.mkdir(parents=True, exist_ok=True)
            write_atomic(experiment.token, token, durable=False)
        except OSError as error:
            raise ExperimentError(
                f"cannot use the experiment directory {experiment}: {error.strerror} ({error.filename})"
            ) from error
    mine = None if experiment is None else str(experiment if experiment.remote else experiment.directory.absolute())
    told = sync.exchange([token, mine, platform.node()])
    token, chiefs, node = told[0]
    end = clock() + SEEN_SECONDS
    while not (sees := is_chief or not token or _sees(experiment, token)) and clock() < end:
        sleep(0.1)
    if sees and experiment is not None and not is_chief:
        experiment.fetch(whole=True)
    blind = [index for index, (seen,) in enumerate(sync.gather([sees])) if not seen]
    if is_chief and experiment is not None:
        with suppress(OSError):
            experiment.token.unlink(missing_ok=True)
        if experiment.remote is not None:
            experiment.remote.storage.delete([".token"])
    if blind:
        where = "; ".join(f"worker {index} has {told[index][1] or 'none'} on {told[index][2]}" for index in blind)
        raise ExperimentError(
            f"the workers do not see the same experiment directory: the chief writes to {chiefs} on {node}, and "
            f"{where}; set trainer.experiment_base_dir to a path on storage that all of them share"
        )


def _sees(experiment: Experiment | None, token: str) -> bool:
    if experiment is None:
        return False
    if experiment.remote is not None:
        return experiment.remote.storage.read(".token") == token.encode()
    try:
        return experiment.token.read_text(encoding="utf-8") == token
    except OSError:
        return False
