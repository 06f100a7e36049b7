"""The `Estimator` class and `train_and_evaluate`."""

from __future__ import annotations

import copy
import inspect
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.actions.export import write_export
from prototrain.actions.saved_model import ServedModel
from prototrain.callbacks import (
    Callback,
    JSONWriter,
    ModelSaver,
    ProgressBar,
    SaveOnExit,
    ScalarPrinter,
    StopOnNaN,
    Summaries,
    TensorBoardWriter,
)
from prototrain.checkpoint.store import BUNDLE, Checkpoint, Checkpoints, verify
from prototrain.checkpoint.values import preserve_global_random
from prototrain.checkpoint.weights import best_checkpoint
from prototrain.config import Config
from prototrain.errors import CheckpointError, ConfigError, ModelError
from prototrain.estimator.export import ServingInputReceiver
from prototrain.estimator.exporters import Exports, ThrottledValidation, export_all, prefix, scalars
from prototrain.estimator.hooks import as_callbacks, names_to_print
from prototrain.estimator.program import Program, taking_named
from prototrain.estimator.specs import (
    EstimatorSpec,
    EvalSpec,
    ModeKeys,
    RunConfig,
    TrainSpec,
    positive,
)
from prototrain.estimator.trainers import BuiltProgram, ProgramTrainer, make_trainer
from prototrain.experiment import Experiment, source_of
from prototrain.experiment.remote import fetched
from prototrain.system.signals import ignore_save_signals

InputFn = Callable[..., tf.data.Dataset]


class Estimator:
    """Trains, evaluates, predicts with and exports the model of a `model_fn`.

    Args:
        model_fn: takes any of `features`, `labels`, `mode`, `params` and `config` by these names and returns an
            `EstimatorSpec`. It creates Keras layers where it uses them; all calls share their variables. Each call is
            for one mode and one tower's batch; labels are None in the mode PREDICT.
        model_dir: the directory of the run, a prototrain experiment. Training always resumes from its newest
            checkpoint. The default is the directory of `config`, or else a new temporary directory.
        config: settings of the runs.
        params: passed to `model_fn` and `input_fn` as a deep copy.
        warm_start_from: the directory of a checkpoint or of another run. Variables of the same name and shape are
            loaded, unless `model_dir` already has a checkpoint.

    Raises:
        ModelError: `model_fn` requires an argument of another name.
        ConfigError: `model_dir` and `config` name different directories, or `config` is not a `RunConfig`.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | Path | None = None,
        config: RunConfig | None = None,
        params: Any = None,
        warm_start_from: str | Path | None = None,
    ) -> None:
        if not isinstance(config, RunConfig | None):
            raise ConfigError(f"config must be a prototrain.estimator.RunConfig, not {type(config).__name__}")
        self.model_fn = model_fn
        self.params = copy.deepcopy(params) if params is not None else {}
        self.config = copy.copy(config) if config is not None else RunConfig()
        self._warm_start_from = warm_start_from
        self._call = taking_named(
            model_fn, "model_fn", features=None, labels=None, mode=None, params=self.params, config=self.config
        )
        self._experiment = _experiment(model_dir, self.config.model_dir)
        self.model_dir = self.config.model_dir = str(self._experiment.directory)

    @ignore_save_signals()
    def train(
        self,
        input_fn: InputFn,
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
    ) -> Estimator:
        """Train from the newest checkpoint until the data ends or all steps are done.

        Args:
            input_fn: takes any of `mode`, `params` and `config` and returns a `tf.data.Dataset` of (features, labels),
                each a tensor or a dict of tensors. An infinite dataset continues from its position at the last
                checkpoint; a finite one starts from the beginning.
            hooks: prototrain callbacks, or objects with the methods of `SessionRunHook`.
            steps: the number of steps to train.
            max_steps: the total number of steps, including those of earlier calls. Give `steps` or `max_steps`, not
                both.

        Returns:
            The estimator.

        Raises:
            PrototrainError: an argument is invalid, or a step fails.
        """
        if steps is not None and max_steps is not None:
            raise ConfigError("train: give steps or max_steps, not both")
        if (more := positive("steps", steps)) is not None:
            max_steps = self._done() + more
        spec = TrainSpec(input_fn, max_steps, hooks)
        if (trainer := self._trainer(spec)) is not None:
            self._run(trainer, spec)
        return self

    def _trainer(self, spec: TrainSpec) -> ProgramTrainer | None:
        """Return a trainer, or None if all steps are done."""
        done = self._done()
        if spec.max_steps is not None and done >= spec.max_steps:
            print(f"nothing to train: {self.model_dir} is at step {done} of {spec.max_steps}")
            return None
        program = self._program(ModeKeys.TRAIN, spec.input_fn)
        with preserve_global_random():
            trainer = make_trainer(program, self.model_dir, self.config.train_distribute)
        if self._warm_start_from is not None and not done:
            trainer.log(trainer.built.load_weights(self._warm_start_from))
        return trainer

    def _run(self, trainer: ProgramTrainer, spec: TrainSpec, *more: Callback) -> None:
        config, hooks = self.config, [*trainer.model.spec.training_hooks, *(spec.hooks or ())]
        trainer.model.printed_names = names_to_print(hooks)
        callbacks = [*trainer.learning_rates(), *more]
        if config.save_summary_steps:
            callbacks.append(Summaries().every(steps=config.save_summary_steps))
        callbacks += [TensorBoardWriter(), JSONWriter()]
        if config.log_step_count_steps:
            printer = ScalarPrinter(blacklist=["trn/loss_(l2|total)$"])
            callbacks.append(printer.every(steps=config.log_step_count_steps))
        saver = ModelSaver(max_to_keep=config.keep_checkpoint_max or sys.maxsize, asynchronous=True)
        callbacks += [ProgressBar(), saver.every(**config.checkpoint_interval), SaveOnExit(), StopOnNaN()]
        # The input_fn decides on the data.
        trainer.train(
            [*callbacks, *as_callbacks(hooks)], max_steps=spec.max_steps or sys.maxsize, allow_changed_data=True
        )

    def _train_and_export(self, train_spec: TrainSpec, eval_spec: EvalSpec) -> tuple[dict[str, Any], list[str | None]]:
        if (trainer := self._trainer(train_spec)) is not None:
            with preserve_global_random():
                built = BuiltProgram(self._program(ModeKeys.EVAL, eval_spec.input_fn))
            built.require_end(eval_spec.steps)  # this and the next line fail before training
            built.take_over(trainer)
            evaluation = ThrottledValidation(built, eval_spec)
            exports = Exports(self, evaluation, eval_spec.exporters)
            chosen = [evaluation, exports] if eval_spec.exporters else [evaluation]
            self._run(trainer, train_spec, *(callback.every(**self.config.checkpoint_interval) for callback in chosen))
            measured = evaluation.measured
            if measured is not None and measured["global_step"] == trainer.global_step and exports.were_final:
                return measured, exports.results
        # The run was killed before its last export, or it ended early, right after an evaluation or before one was due.
        measured = self.evaluate(eval_spec.input_fn, eval_spec.steps, name=eval_spec.name)
        checkpoint = str(self._checkpoint().path)
        exported = export_all(self, eval_spec.exporters, checkpoint, measured, is_final=True)
        if (place := Path(self.model_dir) / "export").is_dir():
            self._experiment.keep(place)  # includes the exporters' records, and removes deleted exports
        return measured, exported

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        *,
        name: str | None = None,
        checkpoint_path: str | Path | None = None,
    ) -> dict[str, Any]:
        """Return the loss and the metrics over a dataset, weighting each example equally.

        Args:
            input_fn: see `train`.
            steps: the number of batches, or None for all.
            name: names the chart in TensorBoard, "eval_<name>"; None for "eval".
            checkpoint_path: a checkpoint, or "best" for the one that `MinSaver` or `MaxSaver` kept. The default is
                `latest_checkpoint()`.

        Returns:
            "loss", the metrics and "global_step" by name.

        Raises:
            CheckpointError: there is no checkpoint, or it does not fit the model.
            ConfigError: `steps` is not a positive integer.
            DataError: the dataset is infinite and `steps` is None.
            StorageError: the `model_dir` is a URL and the chart cannot be uploaded. The results are printed first.
        """
        steps = positive("steps", steps)
        built = self._built(self._program(ModeKeys.EVAL, input_fn), checkpoint_path)
        built.require_end(steps)
        with built.stop:
            measured = built.measure(steps)
            built.stop.check()
        assert measured is not None  # stop.check() raises after a stop
        charts = Path(self.eval_dir(name))
        writer = tf.summary.create_file_writer(str(charts))
        with writer.as_default(step=built.counter.step):
            for scalar, value in scalars(measured).items():
                tf.summary.scalar(scalar, value)
        writer.close()
        words = ", ".join(f"{scalar} {value:.4g}" for scalar, value in scalars(measured).items())
        print(f"evaluated at step {built.counter.step}: {words}")
        self._experiment.keep(charts)
        return measured

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: Sequence[str] | str | None = None,
        *,
        yield_single_examples: bool = True,
        checkpoint_path: str | Path | None = None,
    ) -> Iterator[Any]:
        """Yield predictions. The model is built when the first prediction is requested.

        Args:
            input_fn: see `train`; labels are ignored.
            predict_keys: the names of the predictions to yield, or None for all.
            yield_single_examples: whether to yield single examples or whole batches.
            checkpoint_path: a checkpoint; by default `latest_checkpoint()`.

        Yields:
            Arrays by name, or one array if the predictions of `model_fn` are a single tensor.

        Raises:
            CheckpointError: there is no checkpoint, or it does not fit the model.
            ModelError: no prediction has one of the names in `predict_keys`, or `yield_single_examples` is set and a
                prediction has no value for each example.
        """
        built = self._built(self._program(ModeKeys.PREDICT, input_fn), checkpoint_path)
        predictions = built.model.spec.predictions
        single = not isinstance(predictions, Mapping)
        found = ["output"] if single else list(predictions)
        asked = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        keys = [key for key in found if asked is None or key in asked]
        if not keys:
            raise ModelError(f"predict_keys: there is none of {asked}; model_fn predicts {', '.join(found)}")
        names = list(built.data.element_spec)
        predictor = built.get_predictor(names, keys)
        for batch in built.datasets["trn"]:
            arrays = dict(zip(keys, predictor(*(batch[name] for name in names)), strict=True))
            for example in _examples(arrays) if yield_single_examples else [arrays]:
                yield example["output"] if single else example

    def export_saved_model(
        self,
        export_dir_base: str | Path,
        serving_input_receiver_fn: Callable[[], ServingInputReceiver],
        *,
        checkpoint_path: str | Path | None = None,
    ) -> str:
        """Write a SavedModel that runs without prototrain, and check that its outputs equal the model's.

        Args:
            export_dir_base: a local directory. The SavedModel is written to a subdirectory named by the Unix time in
                seconds.
            serving_input_receiver_fn: returns a `ServingInputReceiver`.
            checkpoint_path: a checkpoint; by default `latest_checkpoint()`.

        Returns:
            The directory of the SavedModel. Its signatures take the received tensors and return the `export_outputs`
            of the `EstimatorSpec`. Without `export_outputs`, "serving_default" returns the predictions.

        Raises:
            CheckpointError: there is no checkpoint, or it does not fit the model.
            ConfigError: `export_dir_base` is a URL.
            ModelError: the model cannot be exported, or the outputs of the export differ.
            ExperimentError: the files cannot be written.
        """
        if "://" in str(export_dir_base):
            raise ConfigError(
                f"export_saved_model: {export_dir_base} is a URL; give a directory, such as one below the model_dir"
            )
        receiver = serving_input_receiver_fn()
        if not isinstance(receiver, ServingInputReceiver):
            kind = type(receiver).__name__
            raise ModelError(f"serving_input_receiver_fn must return an estimator.ServingInputReceiver, not {kind}")
        program = self._program(ModeKeys.PREDICT, receiver.dataset, features_of=receiver.receive)
        built = self._built(program, checkpoint_path)
        built.build(built.data.first_batch, False)  # sets program.signatures
        served = ServedModel(built, list(receiver.receiver_tensors), program.signatures)
        seconds = int(time.time())  # TensorFlow Serving expects numbered directories
        while (final := Path(export_dir_base) / str(seconds)).exists():
            seconds += 1
        compared = write_export(served, final)
        if final.absolute().is_relative_to(self._experiment.directory):
            self._experiment.keep(final)
        print(f"exported step {built.counter.step} to {final}, compared {compared}")
        return str(final)

    def latest_checkpoint(self) -> str | None:
        """Return the path of the newest checkpoint for `tf.train.load_checkpoint`, or None if there is none."""
        newest = self._newest()
        return None if newest is None else str(newest.path / BUNDLE)

    def eval_dir(self, name: str | None = None) -> str:
        """Return the directory of an evaluation's charts; see `evaluate` for `name`."""
        return str(self._experiment.summaries / prefix(name))

    def get_variable_names(self) -> list[str]:
        """Return the names of all variables in the newest checkpoint and "global_step", sorted.

        Raises:
            CheckpointError: there is no checkpoint.
        """
        return sorted([*self._checkpoint().meta["variables"], "global_step"])

    def get_variable_value(self, name: str) -> np.ndarray[Any, Any]:
        """Return the value of a variable in the newest checkpoint.

        Raises:
            CheckpointError: there is no checkpoint, or it has no variable of this name.
        """
        checkpoint = self._checkpoint()
        variables = {**checkpoint.variables(), "global_step": np.asarray(checkpoint.step)}
        if name not in variables:
            raise CheckpointError(f"there is no variable {name!r}; get_variable_names() has all of them")
        return variables[name]

    def _newest(self) -> Checkpoint | None:
        return Checkpoints(self._experiment.checkpoints, run_id=self._experiment.run_id).newest()

    def _done(self) -> int:
        """Return the number of completed steps."""
        newest = self._newest()
        return 0 if newest is None else newest.step

    def _checkpoint(self, path: str | Path | None = None) -> Checkpoint:
        """Return a verified checkpoint; `path` may also be the `latest_checkpoint()` of a run, or the URL of one."""
        if path is not None:
            found = best_checkpoint(self._experiment) if path == "best" else fetched(path)
            return verify(found.parent if found.name == BUNDLE else found)
        newest = self._newest()
        if newest is None:
            raise CheckpointError(f"there is no checkpoint in {self.model_dir} yet; call train() first")
        return newest

    def _program(self, mode: str, input_fn: Callable[..., Any], **more: Any) -> Program:
        directory = Path(self.model_dir).resolve()  # resolve() because Path(".") has no name
        config = Config(
            {
                "trainer.experiment_base_dir": str(directory.parent),
                "trainer.experiment_name": directory.name,
                "model.batch_size": 1,  # replaced when the data is read
                "params": self.params if isinstance(self.params, Mapping) else getattr(self.params, "__dict__", {}),
            }
        )
        if self.config.tf_random_seed is not None:
            config["trainer.random_seed"] = self.config.tf_random_seed
        read = taking_named(input_fn, "input_fn", mode=mode, params=self.params, config=self.config)
        written = self.model_fn.func if isinstance(self.model_fn, partial) else self.model_fn
        name, source = getattr(written, "__name__", "model_fn"), source_of(inspect.getmodule(written))
        return Program(self._call, mode, read, config, name=name, source=source, **more)

    def _built(self, program: Program, checkpoint_path: str | Path | None) -> BuiltProgram:
        checkpoint = self._checkpoint(checkpoint_path)
        with preserve_global_random():
            built = BuiltProgram(program)
        if built.restore_weights(checkpoint, cure="train in another model_dir, or undo the change of model_fn"):
            print(f"the weights of step {built.counter.step} are the moving averages of ExponentialMovingAverage")
        return built


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any], list[Any]]:
    """Train and evaluate in one run.

    Evaluations run when a checkpoint is due, at most as often as `eval_spec` allows, and at the end.

    Args:
        estimator: the estimator to train.
        train_spec: the training data, hooks and number of steps.
        eval_spec: the evaluation data, delays and exporters.

    Returns:
        The results of the last evaluation, and the return value of each exporter after it.

    Raises:
        PrototrainError: an argument is invalid, or a step fails.
    """
    with ignore_save_signals():
        return estimator._train_and_export(train_spec, eval_spec)


def add_metrics(estimator: Estimator, metric_fn: Callable[..., Mapping[str, Any]]) -> Estimator:
    """Return an estimator of the same run with additional metrics.

    Args:
        estimator: the estimator to extend; it is not changed.
        metric_fn: takes any of `labels`, `predictions`, `features` and `config` by these names and returns metrics in
            the form of `EstimatorSpec.eval_metric_ops`. They replace existing metrics of the same name.

    Raises:
        ModelError: `metric_fn` requires an argument of another name.
    """
    more = taking_named(metric_fn, "metric_fn", features=None, labels=None, predictions=None, config=estimator.config)

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        spec = estimator._call(features=features, labels=labels, mode=mode)
        if mode == ModeKeys.EVAL and isinstance(spec, EstimatorSpec):
            found = more(features=features, labels=labels, predictions=spec.predictions)
            spec.eval_metric_ops = {**spec.eval_metric_ops, **found}
        return spec

    twin = copy.copy(estimator)
    twin._call = taking_named(model_fn, "model_fn", features=None, labels=None, mode=None)
    return twin


def _experiment(model_dir: str | Path | None, of_config: str | Path | None) -> Experiment:
    """Return the experiment in the given directory, or in a new temporary one if no directory is given."""
    if model_dir and of_config and Path(model_dir).absolute() != Path(of_config).absolute():
        raise ConfigError(f"there are two model directories, {model_dir} and {of_config}; give one")
    directory = model_dir or of_config
    if not directory:
        directory = tempfile.mkdtemp(prefix="model-")
        print(f"no model_dir was given: the run is kept in the temporary directory {directory}")
    experiment = Experiment.of_run(directory)
    experiment.fetch(whole=True)
    experiment.directory.mkdir(parents=True, exist_ok=True)  # user programs may write there before the run starts
    return experiment


def _examples(arrays: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sizes = {name: len(array) if np.ndim(array) else None for name, array in arrays.items()}
    if len(set(sizes.values())) != 1 or None in sizes.values():
        shapes = ", ".join(f"{name} {np.shape(array)}" for name, array in arrays.items())
        raise ModelError(f"predictions are not one for each example ({shapes}); use yield_single_examples=False")
    for index in range(next(iter(sizes.values())) or 0):
        yield {name: array[index] for name, array in arrays.items()}
