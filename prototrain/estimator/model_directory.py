"""The directory of an estimator's run, and the checkpoints in it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from prototrain.checkpoint import BUNDLE, Checkpoint, Checkpoints, verify
from prototrain.checkpoint.weights import best_checkpoint
from prototrain.errors import CheckpointError, ConfigError, ExperimentError
from prototrain.experiment import Experiment
from prototrain.experiment.remote import fetched
from prototrain.system.terminal import say


class ModelDirectory:
    """The directory of an estimator's run, as an experiment; it is created.

    Args:
        given: the places that the user gave; a new temporary directory if there are none.

    Attributes:
        path: the directory on this machine.
        experiment: the experiment in it.

    Raises:
        ConfigError: there are two different ones.
        ExperimentError: it cannot be made.
    """

    def __init__(self, *given: str | Path | None) -> None:
        found = {one.directory.absolute(): one for one in (Experiment.of_run(place) for place in given if place)}
        if len(found) > 1:
            names = " and ".join(sorted(map(str, found.values())))
            raise ConfigError(f"there are two model directories, {names}; give one")
        if not found:
            directory = tempfile.mkdtemp(prefix="model-")
            say(f"no model_dir was given: the run is kept in the temporary directory {directory}")
        # Programs put other files there before the run starts.
        self.experiment = next(iter(found.values())) if found else Experiment.of_run(directory)
        self.experiment.fetch(whole=True)
        self.path = str(self.experiment.directory)
        try:
            Path(self.path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExperimentError(f"cannot make the directory {self.path}: {error.strerror}") from error

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint, if there is one."""
        self.experiment.check_inside()
        return Checkpoints(self.experiment.checkpoints, run_id=self.experiment.run_id).newest()

    def newest_step(self) -> int:
        """The step of the newest checkpoint; 0 if there is none."""
        newest = self.newest()
        return 0 if newest is None else newest.step

    def checkpoint(self, path: str | Path | None = None) -> Checkpoint:
        """Return a verified checkpoint.

        Args:
            path: of any, as `tf.train.load_checkpoint` takes it or of its directory, which may be a URL; "best" for
                what `MinSaver` or `MaxSaver` kept; None for the newest.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        if path is not None:
            self.experiment.check_inside()  # an evaluation writes there
            found = best_checkpoint(self.experiment) if path == "best" else fetched(path)
            return verify(found.parent if found.name == BUNDLE else found)
        newest = self.newest()
        if newest is None:
            raise CheckpointError(f"there is no checkpoint in {self.path} yet; call train() first")
        return newest
