"""Trainer for compiled Keras models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from numbers import Integral, Number
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.callbacks import ModelSaver, ProgressBar, SaveOnExit, ScalarPrinter, Summaries, Validation
from prototrain.callbacks.base import Callback, innermost
from prototrain.callbacks.evaluation import metric_scalars
from prototrain.callbacks.saving import save_ahead
from prototrain.callbacks.stopping import EarlyStopping
from prototrain.checkpoint.state import preserve_values, unique_name
from prototrain.checkpoint.values import preserve_global_random, tensorflow_seeded
from prototrain.config.values import encode
from prototrain.data.batches import batch_size as examples_of
from prototrain.errors import CallbackError, DataError, ModelError
from prototrain.experiment import Experiment
from prototrain.experiment.facts import Facts
from prototrain.keras.callback import KerasCallback
from prototrain.keras.data import Data, as_dataset, split_data
from prototrain.keras.model import CompiledModel, check_model, flat, guarded, inherits, optimizers_of
from prototrain.model.built import BuiltModel
from prototrain.model.variables import layer_table, select
from prototrain.step.trace import tower_trace
from prototrain.system.signals import StopRequest
from prototrain.system.terminal import announcing
from prototrain.tf_private import compiled_parts
from prototrain.trainers.tower import SimpleTrainer


class KerasTrainer(SimpleTrainer):
    """Trains a compiled `keras.Model` on the data that `fit` takes, with the same losses.

    The trainer uses the arguments of `compile` and trains the variables of the given model. A batch is a dict:
    ``(x, y, sample_weight)`` becomes ``{"x": ..., "y": ..., "sample_weight": ...}``, and the leaves of a nested
    structure are named by their paths, such as ``x/age`` or ``y/0``. `build` returns the predictions as ``y_pred``.

    The scalars of a step are "loss", the loss of that step, and the metrics, which accumulate over the epoch as in
    `fit`. `Validation` calls `keras.Model.evaluate`.

    Args:
        model: a compiled model for one device. A custom `train_step` is traced with all optimizers of the model.
        dataset: batches of ``(x, y)``, ``(x, y, sample_weight)`` or x as a `tf.data.Dataset` or a
            `keras.utils.PyDataset`; arrays in the same form; or a function that returns one of these or a generator.
            Data without a seed resumes exactly if it comes from a function. If None, pass the data to `fit`.
        validation: data in the same form for the `Validation` callback, named "vld".
        batch_size: the batch size for arrays; 32 by default.
        shuffle: whether to shuffle arrays, or the batches of a `PyDataset`, in each epoch.
        class_weight: the weights of the examples by class.
        experiment: the directory of the run, or None to write nothing.
        config: keys for `default_callbacks(trainer.model)` and `train`, such as ``{"trainer.print_interval": 10}``. A
            run warns about keys that it does not read.

    Attributes:
        keras_model: the given Keras model.
        model: its adapter for the training loop.

    Raises:
        ModelError: the model is not compiled.
        DataError: the data is empty or of an unknown type.
        ConfigError: `compile`, the data or a custom `train_step` determines the value of a key of `config`.
    """

    model: CompiledModel
    continues_from_trained = True  # as in `fit`
    _is_silent = False

    def __init__(
        self,
        model: keras.Model,
        dataset: Data | None = None,
        *,
        validation: Data | None = None,
        batch_size: int | None = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        experiment: Experiment | str | Path | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        check_model(model)
        self.keras_model = model
        self._given_experiment, self._given_config = experiment, dict(config or {})
        self._fitted_epochs = 0
        given = {"batch_size": batch_size, "shuffle": shuffle, "class_weight": class_weight}
        if dataset is None:
            _refuse_unused(KerasTrainer, "data", validation=validation, **given)
        else:
            self._set_data(dataset, validation, batch_size, **given)

    def _set_data(self, data: Data, held_out: Data | None, held_out_batch_size: int | None, **given: Any) -> None:
        """Build the trainer when the data is known."""
        model = self.keras_model
        make = {"trn": partial(as_dataset, data, **given)}
        if held_out is not None:
            make["vld"] = partial(as_dataset, held_out, batch_size=held_out_batch_size, training=False)
        self._counted: int | None = None
        with preserve_global_random():
            super().__init__(CompiledModel(model, make, self._given_config), experiment=self._given_experiment)
        self._compiled = compiled_parts(model)
        if not inherits(model, "make_train_function"):
            self.log(f"WARNING: make_train_function of {model.name} is not called; override train_step")
        self.config["model.batch_size"] = int(examples_of(self.data.first_batch))
        self._config_at_start = self._config_now()
        model.reset_metrics()

    def _take_data(self, x: Any, y: Any, sample_weight: Any, validation_split: float, **given: Any) -> None:
        """Build the trainer with the data of `fit`."""
        if x is None:
            raise DataError("fit: this KerasTrainer has no data yet: give it x, or the trainer a dataset")
        held_out, held_out_batch_size = given.pop("validation_data"), given.pop("validation_batch_size")
        # As in Keras, validation_data takes precedence over validation_split.
        data, split = split_data(x, y, sample_weight, 0.0 if held_out is not None else validation_split)
        held_out = split if held_out is None else held_out
        self._set_data(data, held_out, held_out_batch_size or given["batch_size"], **given)

    @property
    def _has_data(self) -> bool:
        return "built" in vars(self)

    @property
    def has_own_train_step(self) -> bool:
        return self.model.has_own_train_step

    def create_optimizers(self) -> None:
        """Register the optimizers of the model."""
        model = self.keras_model
        # Use Keras variables, because the optimizer applies their constraints.
        names = {id(variable): name for name, variable in self.variables.items()}
        trained = {names[id(v.value)]: v for v in model.trainable_variables if id(v.value) in names}
        self.trainable = select(trained, self.config, "model.trainable_variables")
        if self.has_own_train_step:  # its build() has built them
            optimizers = optimizers_of(model)
            slots = {id(variable.value) for optimizer in optimizers.values() for variable in optimizer.variables}
            for name in [name for name, variable in self.variables.items() if id(variable) in slots]:
                del self.variables[name]
            self.loss_scale = None  # train_step and the optimizer scale the loss
        else:
            optimizer = model.optimizer
            if type(optimizer) is keras.optimizers.LossScaleOptimizer:
                optimizer = optimizer.inner_optimizer  # the trainer scales the loss
            if not optimizer.built:
                optimizer.build(model.trainable_variables)
            optimizers = {"optimizer": optimizer}
        for name, optimizer in optimizers.items():
            self.register_optimizer(name, optimizer)
        self.optimizer = optimizers.get("optimizer", next(iter(optimizers.values()), None))

    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Run a step of `SimpleTrainer`, or the model's custom `train_step`; traced."""
        trace = tower_trace()
        if not self.has_own_train_step or trace is None:
            return super().train_step(inputs)
        with guarded(optimizers_of(self.keras_model).values(), trace):
            outputs = dict(self.build(inputs, True))
            trace.weight = None  # "loss_weight" has no special meaning in the logs of a train_step
        if self.optimizer is not None:
            outputs.setdefault("learning_rate", tf.convert_to_tensor(self.optimizer.learning_rate))
        return outputs

    def _check_optimizer(self, optimizer: keras.optimizers.Optimizer) -> None:
        pass  # arguments of the optimizer that only act in `fit` also act here

    def _check_data(self, built: BuiltModel) -> None:
        pass  # the data determines the batch size

    def train(self, callbacks: Any = (), **length: Any) -> None:
        """Train; see `TowerTrainer.train`. Raises ModelError if the model was compiled again."""
        if not self._has_data:
            raise DataError("train: this KerasTrainer has no data yet: give it a dataset, or call fit(x, y)")
        if any(now is not then for now, then in zip(compiled_parts(self.keras_model), self._compiled, strict=True)):
            raise ModelError(f"{self.keras_model.name} was compiled again; make a new KerasTrainer")
        super().train([_Epochs(), *callbacks], **length)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int = 1,
        *,
        max_steps: int | None = None,
        resume: bool = True,
        fresh: bool = False,
        allow_changed_data: bool = False,
    ) -> keras.callbacks.History:
        """Train like `keras.Model.fit`, with its arguments. With an experiment, a stopped run resumes.

        Pass the data once, here or to the constructor. Each further call trains for another `epochs` epochs.

        Args:
            verbose: as in Keras; 0 prints nothing but warnings.
            callbacks: Keras and prototrain callbacks. With an experiment, a `ModelSaver` and a `SaveOnExit` are added.
            max_steps, resume, fresh, allow_changed_data: arguments of `train`.

        Returns:
            The metrics by epoch, including the epochs before a resume.

        Raises:
            DataError: there is no data or data is given twice, an argument has no effect, or `initial_epoch` is given;
                a resumed run knows its epoch.
            PrototrainError: an argument is invalid, or a step fails.
        """
        if initial_epoch:
            raise DataError("fit: leave out initial_epoch: a resumed run continues in its epoch")
        for name, value in (("epochs", epochs), ("validation_freq", validation_freq)):
            if not isinstance(value, Integral):
                raise DataError(f"fit: {name} must be a number of epochs, not {value!r}")
        given = {"y": y, "sample_weight": sample_weight, "validation_split": validation_split}
        given |= {"validation_data": validation_data, "validation_batch_size": validation_batch_size}
        given |= {"batch_size": batch_size, "shuffle": shuffle, "class_weight": class_weight}
        if not self._has_data:
            self._take_data(x, **given)
        elif x is not None:
            raise DataError("fit: this KerasTrainer has its data; make a new one for other data")
        else:
            _refuse_unused(KerasTrainer.fit, "x", **given)
        if "model.num_steps" in self._given_config:
            self.log("WARNING: model.num_steps has no effect: the arguments of fit say how long to train")
        history, validation = keras.callbacks.History(), None
        if "vld" in self.datasets:
            validation = validation_steps or 0, validation_freq
        else:
            given = {"validation_batch_size": validation_batch_size, "validation_steps": validation_steps}
            _refuse_unused(KerasTrainer.fit, "validation data", **given, validation_freq=validation_freq)
        listed = _fit_callbacks(callbacks, verbose, saves=self.experiment is not None, validation=validation)
        # As in Keras, the history comes after the user's callbacks, so that it records the values they add to the logs.
        listed.append(KerasCallback(history, state_key="keras.History/fit"))
        options = {"max_steps": max_steps, "resume": resume, "fresh": fresh, "allow_changed_data": allow_changed_data}
        self._is_silent = not verbose
        try:
            self.train(listed, steps_per_epoch=steps_per_epoch, max_epoch=self._fitted_epochs + epochs, **options)
        finally:
            self._is_silent = False
        self._fitted_epochs += epochs
        return history

    def log(self, text: str) -> None:
        """Print a line, unless ``fit(verbose=0)`` is running, and append it to train.log. Warnings are printed."""
        if self._is_silent and "WARNING" not in text:
            self.run.log_to_file(text)
        else:
            super().log(text)

    @contextmanager
    def _around_run(self) -> Iterator[None]:
        with super()._around_run(), tensorflow_seeded(self.config["trainer.random_seed"]):
            yield

    def _epoch_length(self, *, is_required: bool) -> int | None:
        steps = super()._epoch_length(is_required=is_required)
        if steps is None and is_required:
            steps = self._counted = self._counted or self._count()
        return steps

    def _count(self) -> int:
        """Return the number of batches in the training data by reading it once."""
        dataset = self.datasets["trn"]
        if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise DataError("the training data has no end: say how long an epoch is with steps_per_epoch=")
        with announcing("reading the training data once, to count its batches", self.log):
            steps = sum(1 for _ in dataset)
        self.data.rewind()  # reading it may have changed the order of a shuffled dataset
        return steps

    @property
    def unaveraged(self) -> Collection[str]:  # type: ignore[override]
        """Names of scalars whose last value is recorded, including the metrics.

        Metrics are already averaged over the epoch. "loss" is the loss of one step, unless it is a metric of a custom
        `train_step`.
        """
        metrics = {name for name, _ in flat(self.keras_model.get_metrics_result())}
        if not (self.has_own_train_step and set(self.model.logged) == metrics):
            metrics.discard("loss")
        return {*super().unaveraged, *metrics}

    def _fit_logs(self) -> dict[str, Any]:
        arrays = {name: np.asarray(value) for name, value in flat(self.keras_model.get_metrics_result())}
        metrics = {name: array.item() if array.size == 1 else array for name, array in arrays.items()}
        own, logged = self.has_own_train_step, self.model.logged
        if own and set(logged) == metrics.keys():
            return metrics  # as in `fit`
        step = {name: self.outputs[name] for name in logged if name in self.outputs}
        if not own:
            step.pop("loss", None)  # the loss of this step only; the metric is the mean of the epoch
        return {name: step.get(name, metrics.get(name)) for name in logged if name in step or name in metrics}

    def evaluate(self, dataset: str, batches: int = 0) -> dict[str, float] | None:
        """Measure the model with `keras.Model.evaluate`; see `TowerTrainer.evaluate`."""
        if not isinstance(dataset, str) or dataset not in self.datasets:
            known = ", ".join(self.datasets)
            raise DataError(f"there is no dataset {dataset!r:.60}; there are {known}; keras_model.evaluate takes data")
        model, data = self.keras_model, self.datasets[dataset].map(self.model.as_given(dataset))
        watching = [one.callback for one in self.callbacks.of_class(KerasCallback)]
        callbacks = keras.callbacks.CallbackList([_StopEvaluation(self.stop), *watching], model=model)
        with preserve_values(model.metrics_variables):  # the metrics of training continue over the epoch
            found = model.evaluate(data, steps=batches or None, callbacks=callbacks, verbose=0, return_dict=True)
        return None if self.stop.signum is not None else metric_scalars(found)

    def _describe_layers(self) -> str | None:
        of_metrics = self._of_metrics()
        return layer_table({name: v for name, v in self.variables.items() if name not in of_metrics}, self.trainable)

    def _facts(self) -> Facts:
        metrics = sorted({name.rpartition("/")[0] for name in self._of_metrics()})
        loss = encode(getattr(self.keras_model, "loss", None))
        return {**super()._facts(), "compiled with": {"loss": loss, "metrics": metrics}}

    def _of_metrics(self) -> list[str]:
        """Return the names of the metrics' variables."""
        metrics = {id(variable.value) for variable in self.keras_model.metrics_variables}
        return [name for name, variable in self.variables.items() if id(variable) in metrics]


def _fit_callbacks(callbacks: Any, verbose: Any, *, saves: bool, validation: tuple[int, int] | None) -> list[Callback]:
    """Return the callbacks of `fit`: the default callbacks, then the user's, a nested list.

    `validation` is the number of batches (0 for all) and the interval in epochs, or None for no validation.
    """
    given: list[Callback] = []
    for one in keras.tree.flatten(callbacks or ()):
        callback = one if isinstance(one, Callback) else KerasCallback(one)
        if callback is not one:  # there may be several of a class, such as LambdaCallback
            taken = [str(other.state_key) for other in given]
            callback.state_key = unique_name(str(callback.state_key), taken, first=2)
        given.append(callback)
    kinds = {type(innermost(callback)) for callback in given}
    added: list[Callback] = []
    if validation is not None and Validation not in kinds:
        validates = Validation(batches=validation[0])
        validates.at_end = False  # Keras has no extra validation at the end
        added.append(validates.every(epochs=validation[1]))
    elif validation not in (None, (0, 1)):
        raise CallbackError("fit: with a Validation in the list, leave out validation_steps and validation_freq")
    if verbose:
        added += [] if Summaries in kinds else [Summaries().every(epochs=1)]  # for means over the epoch
        added.append(ScalarPrinter().every(epochs=1))
    if verbose in ("auto", 1, True):
        added.append(ProgressBar())
    if saves:
        added += [kind() for kind in (ModelSaver, SaveOnExit) if kind not in kinds]
    return [*added, *given]


def _refuse_unused(function: Callable[..., Any], without: str, **arguments: Any) -> None:
    """Raise DataError if an argument without effect has another value than its default."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    # Only numbers are compared by value: the comparison of arrays gives arrays.
    same = {name: isinstance(value, Number) and value == defaults[name] for name, value in arguments.items()}
    if given := [name for name, value in arguments.items() if value is not defaults[name] and not same[name]]:
        raise DataError(f"{function.__name__}: {', '.join(given)} has no effect without {without}")


class _Epochs(Callback):
    """Resets the metrics at the start of each epoch. Before `on_train_end`, assigns averages of the optimizer."""

    def before_epoch(self) -> None:
        if self.trainer.local_step == 0:
            self.trainer.keras_model.reset_metrics()

    def after_train(self) -> None:
        trainer: Any = self.trainer
        optimizer = trainer.optimizer
        # A trainer that is ahead has been resumed from a later call of the script.
        has_ended = trainer.global_step == trainer.total_steps and not trainer.callbacks.unfinished
        restored = [one for one in trainer.callbacks.of_class(EarlyStopping) if one.has_restored]
        if has_ended and optimizer is not None and optimizer.use_ema and not restored:
            save_ahead(trainer)
            optimizer.finalize_variable_values(list(trainer.trainable.values()))


class _StopEvaluation(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends an evaluation when a stop of the run is requested."""

    def __init__(self, stop: StopRequest) -> None:
        super().__init__()
        self._stop = stop

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_evaluating = self._stop.signum is not None
