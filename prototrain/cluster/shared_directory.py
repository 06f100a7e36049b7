"""Whether all workers see the directory that the chief writes its run into."""

from __future__ import annotations

import platform
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from prototrain.cluster.link import Link
from prototrain.errors import ExperimentError
from prototrain.experiment import Experiment
from prototrain.system.files import write_atomic

SEEN_SECONDS = 10.0  # in which a file that the chief has written is there for all: network file systems take some


def require_shared(
    link: Link,
    experiment: Experiment | None,
    *,
    is_chief: bool,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Have the chief write a token into the directory, and all others read it there.

    Args:
        link: the line to the others.
        experiment: this worker's.
        is_chief: whether this is the chief.
        clock: returns the time in seconds.
        sleep: waits.

    Raises:
        ExperimentError: a worker does not see it, on all workers; or the chief cannot write there.
        ClusterError: a worker has failed.
    """
    token = ""
    if is_chief and experiment is not None:
        token = uuid.uuid4().hex
        try:
            if experiment.remote is not None:  # where the others find what the chief goes on from, and fetch it
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
    told = link.exchange("the start of the training", [token, mine, platform.node()])
    token, chiefs, _ = told[0]
    end = clock() + SEEN_SECONDS
    while not (seen := is_chief or not token or _sees(experiment, token)) and clock() < end:
        sleep(0.1)
    if seen and experiment is not None and not is_chief:
        experiment.fetch(whole=True)
    everybody = link.exchange("the experiment directory", seen)
    if is_chief and experiment is not None:
        with suppress(OSError):
            experiment.token.unlink(missing_ok=True)
        if experiment.remote is not None:
            experiment.remote.storage.delete([".token"])
    blind = [index for index, sees in enumerate(everybody) if not sees]
    if blind:
        where = "; ".join(
            f"{link.names[index]} has {told[index][1] or 'no directory'} on {told[index][2]}" for index in blind
        )
        raise ExperimentError(
            f"the workers do not see the same experiment directory: the chief writes to {chiefs} on {told[0][2]}, and "
            f"{where}, which is another one; set trainer.experiment_base_dir to a path on storage that all of them "
            "share"
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
