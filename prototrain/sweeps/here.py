"""Trials in this process, one after the other: for a model that is an object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prototrain.callbacks.base import Callback
from prototrain.callbacks.group import checked
from prototrain.config import Config
from prototrain.errors import SweepError
from prototrain.launch import default_callbacks, launch
from prototrain.model import ModelProtocol
from prototrain.sweeps.reporter import reporter
from prototrain.sweeps.study import Study
from prototrain.sweeps.summary import Progress
from prototrain.system.tracebacks import format_error, in_one_line


def run_here(
    study: Study,
    model: ModelProtocol,
    *,
    callbacks: Callable[[ModelProtocol], Iterable[Callback]] | None,
    say: Callable[[str], None],
    **options: Any,
) -> None:
    """Run all trials that are left.

    Args:
        study: gives the trials.
        model: its config has a trial's values while the trial runs.
        callbacks: makes the callbacks of a trial; `default_callbacks` if None.
        say: prints a line.
        options: for `launch`.

    Raises:
        SweepError: the trials do not measure the objective, or the storage has failed.
        KeyboardInterrupt: after Ctrl-C, once the trial is saved.
        SystemExit: after SIGTERM, SIGHUP or SIGXCPU, with exit code 128 + its number, once the trial is saved.
    """
    progress = Progress(study)
    while (trial := study.next()) is not None:
        say(f"trial {trial.number} runs: {' '.join(trial.settings)}")
        name = {"trainer.experiment_name": trial.experiment.directory.name}
        with _having(model.config, {**study.plan.config, **trial.values, **name}):
            try:
                launch(
                    model,
                    callbacks=[*checked((callbacks or default_callbacks)(model)), reporter(trial.report, model.config)],
                    **options,
                )
                ending = trial.finish()
            except (SweepError, KeyboardInterrupt, SystemExit):
                trial.release()
                raise
            except Exception as error:  # whatever the model does is the trial's result
                ending = trial.fail(in_one_line(error), format_error(error))
        say(progress.after(trial.number, ending))


@contextmanager
def _having(config: Config, values: Mapping[str, Any]) -> Iterator[None]:
    """Give a config other values for a while."""
    before = config.copy()
    config.update(values)
    try:
        yield
    finally:
        config.clear()
        config.update(before)
