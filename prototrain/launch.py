"""Trains a model as its config describes, like `prototrain run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from prototrain.callbacks import (
    Callback,
    EarlyStopping,
    JSONWriter,
    LearningRate,
    MaxSaver,
    MinSaver,
    ModelSaver,
    ProgressBar,
    SaveOnExit,
    ScalarPrinter,
    StopOnNaN,
    Summaries,
    TensorBoardWriter,
    Validation,
)
from prototrain.callbacks.group import as_list
from prototrain.callbacks.integrations import DebugShell
from prototrain.config.schema import intervals
from prototrain.errors import CallbackError, ConfigError
from prototrain.experiment import Experiment
from prototrain.model import ModelProtocol
from prototrain.model.loading import check_model
from prototrain.schedules import from_config
from prototrain.system.signals import ignore_save_signals
from prototrain.towers import choose_devices
from prototrain.trainers.replicated import SyncReplicatedTrainer
from prototrain.trainers.tower import SimpleTrainer, TowerTrainer


def default_callbacks(model: ModelProtocol) -> list[Callback]:
    """Return a new list of the callbacks that a model's config describes, followed by the model's own callbacks.

    Raises:
        CallbackError: the model's `callbacks` is not a function that returns a list of callbacks.
    """
    check_model(model)
    config = model.config
    validating = intervals(config["trainer.validation_step_interval"])
    validation = Validation(
        batches=config["trainer.validation_batches"], rehearse=config["trainer.rehearse_validation"]
    )
    printing = intervals(config["trainer.print_interval"])
    saving = config["trainer.checkpoint_save_interval"]
    saver = ModelSaver(max_to_keep=config["trainer.max_checkpoints_to_keep"], asynchronous=True)
    if saving == "auto":
        saves = saver.every(seconds="auto", failures_per_day=config["trainer.failures_per_day"])
    else:
        saves = saver.every(**intervals(saving))
    schedule = from_config(config)
    found: list[Callback] = [
        *([] if schedule is None else [LearningRate(schedule)]),
        validation.every(**validating),
        Summaries().every(**intervals(config["trainer.summary_save_interval"])),
        TensorBoardWriter(),
        JSONWriter(),
        ScalarPrinter().every(**(printing if config["model.num_epochs"] is None else {"epochs": 1, **printing})),
        ProgressBar(scalars=config["trainer.progress_scalars"]),
        saves,
        SaveOnExit(),
        StopOnNaN(),
    ]
    if (stat := config["trainer.keep_best"]) is not None:
        best = MinSaver if config["trainer.keep_best.mode"] == "min" else MaxSaver
        found.append(best(stat).every(**validating))
    key = "trainer.early_stopping"
    if (stat := config[key]) is not None:
        names = ("mode", "patience", "min_delta", "restore_best")
        found.append(EarlyStopping(stat, **{name: config[f"{key}.{name}"] for name in names}).every(**validating))
    of_model: Any = getattr(model, "callbacks", None) or list
    if not callable(of_model):
        kind = type(of_model).__name__
        raise CallbackError(f"the model's callbacks must be a function that returns a list, not {kind}")
    return [*found, *as_list(of_model(), "the model's callbacks() must return a list of callbacks")]


@ignore_save_signals()
def launch(
    model: ModelProtocol,
    *,
    trainer: Callable[..., TowerTrainer] | None = None,
    towers: int | str | Sequence[str] | None = None,
    callbacks: Iterable[Callback] | None = None,
    fresh: bool = False,
    confirm: Callable[[str], bool] | None = None,
    debug: bool = False,
    allow_changed_data: bool = False,
) -> TowerTrainer:
    """Train a model as its config describes, and resume from its newest checkpoint if there is one.

    Args:
        model: the model to train.
        trainer: a trainer class or a factory, called with the model and `experiment=`, and with `towers=` if `towers`
            is given. The default is `SyncReplicatedTrainer` if there are several GPUs or `towers` is given, else
            `SimpleTrainer`.
        towers: the devices to train on, see `SyncReplicatedTrainer`.
        callbacks: the callbacks; `default_callbacks(model)` if None.
        fresh: delete the experiment directory first.
        confirm: called with a question before anything is deleted, returns whether to delete; None does not ask.
        debug: open a shell after the setup.
        allow_changed_data: continue even if the training data differs from the checkpoint's.

    Returns:
        the trainer, after the run.

    Raises:
        PrototrainError: the run is not set up correctly, or a step failed.
    """
    check_model(model)
    config = model.config
    config.validate()
    experiment = Experiment.from_config(config)
    would_be_chief = not (isinstance(trainer, type) and issubclass(trainer, TowerTrainer)) or trainer.would_be_chief()
    if would_be_chief:  # only the chief worker writes the directory
        experiment.fetch()
        experiment.check_free()
    if would_be_chief and fresh:
        experiment.check_deletable()
        if experiment.exists() and confirm is not None and not confirm(f"delete everything in {experiment}?"):
            raise ConfigError(f"{experiment} was not deleted, so the run was not started")
    made = _make_trainer(trainer, towers)(model, experiment=experiment)
    chosen = as_list(default_callbacks(model) if callbacks is None else callbacks)
    # The old run is deleted only in `train`, after the model was built without an error.
    options = {"fresh": fresh, "allow_changed_data": allow_changed_data}
    asked_for = {name: value for name, value in options.items() if value}  # an overridden `train` may not accept them
    made.train([*chosen, DebugShell()] if debug else chosen, **asked_for)
    return made


def _make_trainer(
    trainer: Callable[..., TowerTrainer] | None, towers: int | str | Sequence[str] | None
) -> Callable[..., TowerTrainer]:
    if trainer is None:
        if towers is None:
            devices = choose_devices(None)
            if len(devices) == 1:
                return SimpleTrainer
            print(f"training on all {len(devices)} GPUs; --towers 1 takes only one, CUDA_VISIBLE_DEVICES hides some")
        trainer = SyncReplicatedTrainer
    if towers is None:
        return trainer
    if isinstance(trainer, type) and issubclass(trainer, TowerTrainer) and not trainer.takes_towers:
        cure = f"derive it from SyncReplicatedTrainer to have {towers!r}"
        raise ConfigError(f"towers: {trainer.__name__} has one tower only; {cure}")
    return partial(trainer, towers=towers)
