"""The function that runs a sweep, for Python and for the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.group import as_list
from prototrain.config.config import UNSET_TEXT
from prototrain.config.schema import NEEDS, REFERENCE
from prototrain.config.values import as_text
from prototrain.errors import ConfigError, SweepError
from prototrain.launch import default_callbacks, launch
from prototrain.model import ModelProtocol, load_model
from prototrain.sweeps.plan import Plan
from prototrain.sweeps.reporter import reporter
from prototrain.sweeps.space import as_options, as_settings, from_mapping
from prototrain.system.signals import StopRequest, ignore_save_signals
from prototrain.system.terminal import print_tables, say
from prototrain.system.tracebacks import format_error, in_one_line

if TYPE_CHECKING:
    from prototrain.callbacks.base import Callback
    from prototrain.callbacks.monitor import Mode
    from prototrain.sweeps.study import Study
    from prototrain.sweeps.summary import SweepResult
    from prototrain.trainers.tower import TowerTrainer


@ignore_save_signals()
def sweep(
    model: str | ModelProtocol,
    space: Mapping[str, Any],
    *,
    trials: int | None = None,
    objective: str = "vld/loss",
    mode: Mode = "min",
    jobs: int = 1,
    storage: str | None = None,
    pruner: str | None = None,
    overrides: str | Iterable[str] = (),
    callbacks: Callable[[ModelProtocol], Iterable[Callback]] | None = None,
    trainer: str | Callable[..., TowerTrainer] | None = None,
    towers: int | str | Sequence[str] | None = None,
    cluster: str | None = None,
    cpus_per_trial: float = 1.0,
    gpus_per_trial: float = 0.0,
) -> SweepResult:
    """Train a model many times with different config values, each time in another experiment.

    The same call again continues the sweep: finished trials are not run again, and stopped or killed trials continue
    from their checkpoints. Several processes and machines can share one sweep.

    A model that is given by name is trained in other processes, so a trial that crashes does not end the sweep. A model
    that is given as an object is trained in this process.

    Args:
        model: the name of a module, such as "models.simple", or an object with `config`, `datasets` and `build`.
        space: for each key a list of values, or a text such as "log:1e-5..1e-1" (see `prototrain sweep`).
        trials: the total number of trials to sample; None to run every combination.
        objective: the scalar that rates a trial; its last value counts.
        mode: whether smaller ("min") or larger ("max") is better.
        jobs: the number of trials that run at the same time.
        storage: a database URL, or the path of an Optuna journal file; by default, next to the experiments, an SQLite
            file ``<name>.sweep.db``, or on a cluster a journal file ``<name>.sweep.journal``.
        pruner: the method that ends bad trials early: "median", "halving", "hyperband" or "none". By default "median"
            if trials are sampled, else "none".
        overrides: config values that all trials share, as `KEY=VALUE` texts.
        callbacks: for a model object, a function that returns the callbacks of a trial; by default `default_callbacks`.
        trainer, towers: see `launch`. For a model that is given by name, the trainer is a text "MODULE:CLASS".
        cluster: the address of a Ray cluster that runs the trials, or "local" for this machine. If a machine is lost,
            its trials continue elsewhere from their checkpoints.
        cpus_per_trial, gpus_per_trial: what the cluster reserves for each trial. The GPUs may be a fraction of one
            (0.5).

    Returns:
        the outcomes of all trials, and the best one.

    Raises:
        SweepError: the sweep cannot begin, its storage fails, no trial finished, or one was killed.
        ConfigError: a key or a value of the space is wrong, or Ray is not installed.
        ClusterError: there is no cluster at the address.
        KeyboardInterrupt: after Ctrl-C, once all trials are saved.
        SystemExit: after SIGTERM, SIGHUP or SIGXCPU, with exit code 128 + its number, once all trials are saved.
    """
    if find_spec("optuna") is None:
        raise SweepError("sweeps need Optuna, which is not installed: pip install 'prototrain[sweep]'")
    import optuna

    from prototrain.sweeps.processes import run_in_processes
    from prototrain.sweeps.study import PRUNERS, Study, reporting_failures, sqlite_url, without_password
    from prototrain.sweeps.summary import describe

    if pruner is not None and pruner not in PRUNERS:
        raise SweepError(f"pruner must be one of {', '.join(PRUNERS)}, got {pruner!r}")
    if jobs < 1:
        raise SweepError(f"jobs must be at least 1, got {jobs}")
    if cluster is None and (cpus_per_trial, gpus_per_trial) != (1.0, 0.0):
        raise SweepError("cpus_per_trial and gpus_per_trial are for a cluster: say which one, such as --cluster auto")
    found = load_model(model) if isinstance(model, str) else model
    config = found.config.copy()
    overrides = [overrides] if isinstance(overrides, str) else list(overrides)
    config.override(overrides)
    plan = Plan(config=config, space=from_mapping(space), trials=trials, objective=objective, mode=mode)
    for key in plan.space.keys() & {text.partition("=")[0].strip() for text in overrides}:
        say(f"WARNING: the given {key} has no effect: the sweep sets it")
    for key in plan.space:
        if (why := config.why_without_effect(key)) is not None and not plan.space.keys() & NEEDS.get(key, ()):
            say(f"WARNING: {key} has no effect: {why}")
    command = None
    if isinstance(model, str):
        if callbacks is not None or not isinstance(trainer, str | None):
            raise SweepError("callbacks, and a trainer that is not a text, need the model itself, not its name")
        named = towers if isinstance(towers, int | str | None) else ",".join(towers)
        command = _command(model, plan, {"--trainer": trainer, "--towers": named})
    elif jobs > 1 or cluster is not None:
        what = "several jobs need" if cluster is None else "a cluster needs"
        raise SweepError(f"{what} the model's name, such as 'models.simple', not the model itself")
    if storage is None and cluster is not None:
        storage = str(plan.directory / f"{plan.name}.sweep.journal")  # machines cannot share a file of SQLite
    where = sqlite_url(plan.directory / f"{plan.name}.sweep.db") if storage is None else storage
    stop = StopRequest(say, saves=False)
    with ExitStack() as stack, reporting_failures(where):
        stack.callback(optuna.logging.set_verbosity, optuna.logging.get_verbosity())
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        options = {"storage": where, "pruner": pruner or ("none" if trials is None else "median")}
        study = Study(plan, **options)
        begun = len(study.result().trials)
        planned = f"{plan.total} trial{'s' * (plan.total != 1)}, {begun} of them begun"
        say(f"sweep {plan.name}: {planned}, in {without_password(where)}")
        with closing(study):
            if command is None:
                _run_here(study, found, callbacks or default_callbacks, trainer=trainer, towers=towers)
            else:
                with stop:
                    if cluster is None:
                        run_in_processes(study, command, jobs=jobs, stop=stop, say=say)
                    else:
                        from prototrain.sweeps.on_ray import run_on_ray

                        resources = {"num_cpus": cpus_per_trial, "num_gpus": gpus_per_trial}
                        run_on_ray(cluster, plan, options, command, jobs=jobs, resources=resources, stop=stop)
        result = study.result()
    print_tables("", *describe(plan, result, command))
    stop.check()
    if stopped := [str(trial.number) for trial in result.trials if trial.state == "stopped"]:
        raise SweepError(f"not at its end: trial {', '.join(stopped)}; the same command continues from the checkpoints")
    if all(trial.state == "failed" for trial in result.trials):
        first = result.trials[0]
        raise SweepError(f"no trial has finished; trial {first.number} failed: {first.error}")
    return result


def _run_here(
    study: Study, model: ModelProtocol, callbacks: Callable[[ModelProtocol], Iterable[Callback]], **options: Any
) -> None:
    """Run the trials of a model object in this process, one after the other."""
    while (trial := study.next()) is not None:
        say(f"trial {trial.number} runs: {' '.join(as_settings(trial.values))}")
        config, before = model.config, model.config.copy()
        name = {"trainer.experiment_name": trial.experiment.directory.name}
        for values in (study.plan.config, trial.values, name):  # of num_epochs and num_steps, the last one counts
            config.update(values)
        try:
            launch(model, callbacks=[*as_list(callbacks(model)), reporter(trial.report, config)], **options)
            ending = trial.finish()
        except SweepError:
            raise
        except Exception as error:  # any error of the model is the result of the trial
            ending = trial.fail(in_one_line(error), format_error(error))
        finally:
            config.clear()
            config.update(before)
        say(study.progress(trial.number, ending))


def _command(model: str, plan: Plan, options: Mapping[str, object]) -> list[str]:
    """Return the arguments of `prototrain` that all trials share."""
    settings = []
    for key, value, _ in plan.config.changes() or ():
        if value == UNSET_TEXT:
            continue  # num_steps, which a num_epochs has removed, or the reverse
        try:
            if callable(plan.config.get(key)) and not REFERENCE.fullmatch(str(value)):
                raise ConfigError(f"{key} is a function without a name")
            plan.config.copy().override(f"{key}={as_text(value)}")
        except ConfigError as error:
            raise SweepError(f"another process cannot be given this config, give the model itself: {error}") from error
        settings += [] if key in plan.space else [f"{key}={as_text(value)}"]
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return ["run", model, *as_options(settings), *words]
