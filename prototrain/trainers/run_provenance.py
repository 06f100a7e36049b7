"""What a run is made from: config, code and versions, as its directory and its checkpoints say it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from prototrain.experiment import source_of
from prototrain.experiment.provenance import OF_CALLBACKS, OF_TRAINER, STEPS_PER_EPOCH, import_digests, source_digest
from prototrain.trainers.made_with import made_with
from prototrain.trainers.versions import versions

if TYPE_CHECKING:
    from prototrain.config import Config
    from prototrain.trainers.base import Trainer


class RunProvenance:
    """Describes it; made with the trainer, before anyone edits what this process has imported.

    Args:
        trainer: of the run.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        own = type(trainer).__module__
        self._trainer_code = None if own.startswith("prototrain.") else source_digest(source_of(trainer))
        self._imported: dict[str, str] = {}  # nobody reads a module again that is edited meanwhile

    def config(self) -> Config | None:
        """A copy of the trainer's config, with the length that `train` was given."""
        trainer = self._trainer
        config = None if trainer.config is None else trainer.config.copy()
        if config is not None and not trainer.is_endless:
            config["model.num_steps"] = trainer.total_steps
        if config is not None and trainer.given_steps_per_epoch is not None:
            config["trainer.steps_per_epoch"] = trainer.given_steps_per_epoch
        return config

    def origin(self) -> dict[str, Any]:
        """For environment.json; see `Trainer.origin`."""
        found = self._trainer.origin()
        return {**found, "imports": import_digests(map(Path, found["modules"].values()))}

    def _imports(self) -> dict[str, str]:
        """The modules of the user's own that have been imported so far; a step may import one, too."""
        copied = [source for source in self._trainer.sources() if source is not None]
        self._imported |= import_digests(copied, known=self._imported)
        return dict(self._imported)

    def provenance(self) -> dict[str, Any]:
        """Versions, threads and code; see `Trainer.provenance`."""
        trainer, config = self._trainer, self._trainer.config
        of_config = None if config is None else config.get("trainer.steps_per_epoch")
        return {
            **versions(),
            "trainer": type(trainer).__name__,
            "trainer code": self._trainer_code,
            OF_TRAINER: made_with(trainer),
            "imports": self._imports(),
            # Of several workers the chief has all of them, and it alone saves.
            OF_CALLBACKS: trainer.callbacks.settings if trainer.is_chief else None,
            STEPS_PER_EPOCH: of_config if trainer.given_steps_per_epoch is None else trainer.given_steps_per_epoch,
        }
