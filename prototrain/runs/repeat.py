"""Repetition of a run from its directory, with its config, the copies of its modules, and its devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prototrain.callbacks.base import Callback
from prototrain.config import Config, differing
from prototrain.config.schema import LOCATION_KEYS
from prototrain.config.values import read_object
from prototrain.data.pipeline import first_difference
from prototrain.errors import ConfigError, ExperimentError
from prototrain.experiment import Experiment
from prototrain.experiment.facts import changes
from prototrain.experiment.record import read_attempts
from prototrain.experiment.rows import RepeatedRows, rows_of
from prototrain.system.terminal import plain_table


class Repeat:
    """A run that is repeated in another directory.

    Attributes:
        model: the name of its model.
        trainer: the class of its trainer, as ``module:name``.
        towers: its devices, in the form of `--towers`; None if its trainer takes no towers.
        modules: the paths of its modules and of their copies, by name.
    """

    def __init__(self, directory: str, model: str | None = None) -> None:
        self._experiment = experiment = Experiment(directory)
        experiment.fetch()
        if not experiment.environment.is_file():
            raise ExperimentError(f"--from: {directory} is not an experiment: it has no environment.json")
        self._environment = found = read_object(experiment.environment)
        if missing := {"trainer", "modules", "facts"} - found.keys():
            raise ExperimentError(f"--from: {experiment.environment} is damaged: it has no {min(missing)!r}")
        if not isinstance(found.get("model"), str) or found["trainer"].startswith("__main__:"):
            raise ExperimentError(
                f"--from: {directory} is of a script ({' '.join(map(str, found.get('command', [])))}), which makes its "
                "own model or trainer; run that again"
            )
        if model not in (None, found["model"]):
            raise ConfigError(f"--from: the model of {directory} is {found['model']}, not {model}; leave MODEL out")
        self.model: str = found["model"]
        self.trainer: str = found["trainer"]
        towers = found.get("towers")
        names = list(map(str, towers)) if isinstance(towers, list) else []
        on_cpu = all(name.startswith("CPU") for name in names)
        self.towers = (f"cpu:{len(names)}" if on_cpu else ",".join(names)) if names else None  # as --towers takes them
        self.modules = {name: self._kept(name, Path(home)) for name, home in found["modules"].items()}
        if len({copy for _, copy in self.modules.values()}) < len(self.modules):
            raise ExperimentError(
                f"--from: {' and '.join(self.modules)} have the same file name, so {directory}/source has only one of "
                "them"
            )

    def _kept(self, name: str, home: Path) -> tuple[Path, Path]:
        copy = self._experiment.directory / "source" / home.name
        if not copy.exists():
            raise ExperimentError(f"--from: {copy} is missing, the copy of {name}")
        here = Path.cwd().joinpath(*name.split("."))
        original = next(filter(Path.exists, (home, here, here.with_suffix(".py"))), copy.absolute())
        return original, copy.absolute()

    def __str__(self) -> str:
        return str(self._experiment)

    def configure(self, config: Config) -> None:
        """Restore the config of the run, and name the new experiment ``<name>-repeat``, in the same directory."""
        config.restore(self._experiment.directory / "config.json")
        directory = Path(os.path.normpath(self._experiment.directory))
        directory = directory if directory.name not in ("", "..") else directory.resolve()
        config["trainer.experiment_base_dir"] = str(directory.parent)
        config["trainer.experiment_name"] = f"{directory.name}-repeat"
        measured = [one.jit_compile for one in read_attempts(self._experiment.record) if one.jit_compile is not None]
        if config["model.jit_compile"] == "auto" and measured:
            config["model.jit_compile"] = measured[-1]  # another measurement could have another result

    def check_directory(self, config: Config, *, fresh: bool) -> None:
        """Raise a `ConfigError` if a config names the directory of the run itself, or of a repeat with other values."""
        directory = Experiment.from_config(config).directory
        if directory.resolve() == self._experiment.directory.resolve():
            raise ConfigError(f"--from: {self._experiment} cannot be repeated into itself; set another experiment_name")
        if not fresh and (directory / "config.json").is_file():
            for key, (was, value) in differing([read_object(directory / "config.json"), config]):
                if key.startswith("model.") and not key.startswith("model.num_"):
                    raise ConfigError(
                        f"--from: {directory} has begun with another {key} ({was}, now {value}); repeat with --fresh, "
                        "or set another experiment_name"
                    )

    def differences(self, now: dict[str, Any], config: Config) -> list[str]:
        """Describe the differences between the run and another one with this environment.json and config."""
        then = self._environment
        found = changes(_settings(then), _settings(now))
        changed = differing([read_object(self._experiment.directory / "config.json"), config])
        found += [f"config {key} was {was} and is {value}" for key, (was, value) in changed if key not in LOCATION_KEYS]
        stages = first_difference(then["data"]["stages"], now["data"]["stages"])
        found += [] if stages is None else [stages]
        resumed = [one.start for one in read_attempts(self._experiment.record) if "changed: " in (one.start or "")]
        return found + [f"the run itself was {line}" for line in resumed]

    def announcement(self) -> Callback:
        """Return a callback that logs the differences at the start of training."""
        return _Announcement(self)

    def compare_metrics(self, experiment: Experiment) -> str:
        """Describe whether another run has the same metrics, apart from times and speeds."""
        repeated, found = RepeatedRows(self._experiment.metrics, 0, 0), None
        for row in rows_of(experiment.metrics):
            found = repeated.compare(row, is_last=True)
            if found is not None and not found[0]:
                break
        return f"metrics compared with {self}: {found[1] if found else 'there are none at the same steps'}"


class _Announcement(Callback):
    """Logs at the start of training how the run differs from the one that it repeats."""

    def __init__(self, repeat: Repeat) -> None:
        self._repeat = repeat

    def before_train(self) -> None:
        experiment = self.trainer.require_experiment(self.name)
        assert self.trainer.config is not None
        lines = self._repeat.differences(read_object(experiment.environment), self.trainer.config)
        rows = {"repeats": self._repeat, "differs in": "; ".join(lines) or "nothing that is known"}
        self.trainer.log(plain_table(rows) + "\n")


def _settings(environment: dict[str, Any]) -> dict[str, Any]:
    names = ("versions", "platform", "devices", "directory")
    data = {f"data {name}": environment["data"].get(name) for name in ("file names", "file sizes")}
    callbacks = environment.get("callbacks", ())
    return {**environment["facts"], **data, "callbacks": callbacks, **{name: environment.get(name) for name in names}}
