"""A Keras model that was compiled elsewhere, trained by the compiled loop."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.callbacks.base import Callback, innermost
from prototrain.callbacks.integrations.keras_callback import KerasCallback
from prototrain.checkpoint.random import global_random_kept, tensorflow_seeded
from prototrain.data.batches import batch_size as examples_of
from prototrain.data.batches import check_divides
from prototrain.data.rule import reshuffles
from prototrain.errors import DataError, ModelError
from prototrain.experiment import Experiment
from prototrain.experiment.facts import Facts
from prototrain.model.built import BuiltModel
from prototrain.model.variables import layer_table, select, variable_table
from prototrain.private_api.of_keras import compiled_parts
from prototrain.step.trace import tower_trace
from prototrain.system.waiting import announcing
from prototrain.trainers.keras_arguments import check_fit, check_unused, without_effect
from prototrain.trainers.keras_data import Data, made
from prototrain.trainers.keras_evaluation import evaluated, rehearsed
from prototrain.trainers.keras_fit import fit_callbacks, fit_data
from prototrain.trainers.keras_model import CompiledModel, check, flat, guarded, named_optimizers, optimizers_of
from prototrain.trainers.tower import SimpleTrainer


class KerasTrainer(SimpleTrainer):
    """Trains a `keras.Model` that is compiled, on the batches that `fit` would take, with the same losses.

    What `compile` was given is used: optimizer, losses and their weights, metrics, `jit_compile`; and so are
    regularizers, `add_loss`, frozen layers and constraints. The model's own variables are trained, so the model that
    was given has the trained weights.

    A batch is a dict here, so ``(x, y, sample_weight)`` becomes ``{"x": ..., "y": ..., "sample_weight": ...}``, and a
    part of a nested one is named by its path, such as ``x/age`` or ``y/0``. `build` gives the predictions as
    ``y_pred``, named in the same way.

    The scalars of a step are "loss", that of the step, and the metrics, which count from the start of the epoch as in
    `fit`. Validation is that of `keras.Model.evaluate`.

    Args:
        model: compiled, of one device. A `train_step` of its own is traced as it is, with the optimizers that it uses.
        dataset: gives ``(x, y)``, ``(x, y, sample_weight)`` or x alone, batched: a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, a generator; or such arrays; or a function that makes one of these. A function can
            be called again under the same seed, so that data without a seed resumes exactly. None: `fit` is given it.
        validation: such data for the `Validation` callback, named "vld"; `validation_data` is another name of it.
        batch_size: of arrays; 32 by default.
        shuffle: whether arrays, and the batches of a `PyDataset`, come in another order in each epoch.
        class_weight: from a class to the weight of its examples.
        experiment: the directory of the run, if it is to leave anything behind.
        config: keys for `default_callbacks(trainer.model)` and `train`, such as ``{"trainer.print_interval": 10}``.

    Attributes:
        keras_model: the model that was given; `model` is what the loop sees of it.

    Raises:
        ModelError: the model is not compiled.
        DataError: the data is empty, or none.
    """

    model: CompiledModel
    takes_other_optimizers = True
    continues_from_trained = True  # as `fit` does
    may_set_trainable = False  # the optimizer is the user's, built for what was trainable

    def __init__(
        self,
        model: keras.Model,
        dataset: Data | None = None,
        *,
        validation: Data | None = None,
        validation_data: Data | None = None,
        batch_size: int | None = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        experiment: Experiment | str | Path | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        check(model)
        if validation is not None and validation_data is not None:
            raise DataError("validation and validation_data are two names of one argument; give one of them")
        self.keras_model = model
        self._may_train: set[str] = set()
        self._epochs = 0  # that `fit` was asked for
        self._begin = partial(self._begin_with, experiment=experiment, config=dict(config or {}))
        if dataset is None:
            check_unused(
                "KerasTrainer",
                "data",
                validation=(validation, None),
                validation_data=(validation_data, None),
                batch_size=(batch_size, None),
                shuffle=(shuffle, True),
                class_weight=(class_weight, None),
            )
        else:
            held_out = validation_data if validation is None else validation
            self._begin(dataset, held_out, (batch_size, batch_size), shuffle=shuffle, class_weight=class_weight)

    def _begin_with(
        self,
        dataset: Data,
        held_out: Data | None,
        batch_sizes: tuple[int | None, int | None],
        *,
        shuffle: bool,
        class_weight: Mapping[int, float] | None,
        experiment: Experiment | str | Path | None,
        config: dict[str, Any],
    ) -> None:
        make = {"trn": partial(made, dataset, batch_size=batch_sizes[0], shuffle=shuffle, class_weight=class_weight)}
        if held_out is not None:
            make["vld"] = partial(made, held_out, batch_size=batch_sizes[1], training=False)
        self._can_be_counted = not isinstance(dataset, Iterator)
        self._passes: int | None = None
        with global_random_kept():
            super().__init__(CompiledModel(self.keras_model, make, config), experiment=experiment)
        self._compiled = compiled_parts(self.keras_model)
        for line in without_effect(self.keras_model, config, has_own_step=self.has_own_train_step):
            self.log(f"WARNING: {line}")
        size = int(examples_of(self.data.first_batch))
        check_divides(size, 1, self.config["model.accumulate_steps"])
        self.config["model.batch_size"] = size
        self.keras_model.reset_metrics()

    def __getattr__(self, name: str) -> Any:
        model = vars(self).get("keras_model")
        if name.startswith("_") or model is None:
            raise AttributeError(f"{type(self).__name__} has no {name!r}", name=name, obj=self)
        if "built" not in vars(self):
            raise _MissingError(
                f"this KerasTrainer has no data yet, so it has no {name}: give it some, or call fit(x, y)"
            )
        instead = f"; the Keras model has it: trainer.keras_model.{name}" if hasattr(model, name) else ""
        raise _MissingError(f"KerasTrainer has no {name}{instead}")

    def create_optimizers(self) -> None:
        """Take the optimizers that the model has."""
        # The Keras variables themselves, since the optimizer asks them for constraints.
        names = {id(variable): name for name, variable in self.variables.items()}
        trained = {names[id(v.value)]: v for v in self.keras_model.trainable_variables if id(v.value) in names}
        self.trainable = select(trained, self.config, "model.trainable_variables")
        if self.has_own_train_step:
            self._take_optimizers()
            return
        self.optimizer = self.keras_model.optimizer
        if type(self.optimizer) is keras.optimizers.LossScaleOptimizer:
            # Scaling of the loss is the engine's, which knows what to do after an overflow.
            self.optimizer = self.optimizer.inner_optimizer
        if not self.optimizer.built:
            self.optimizer.build(self.keras_model.trainable_variables)
        elif self._may_train and not self.trainable.keys() <= self._may_train:
            raise ModelError(
                f"layers of {self.keras_model.name} are trainable now that were not when its optimizer was built; "
                "compile it again, as for fit, and make a new KerasTrainer"
            )
        self._may_train = self._may_train or set(self.trainable)
        self.register_optimizer("optimizer", self.optimizer)

    def _check_optimizer(self, optimizer: keras.optimizers.Optimizer) -> None:
        pass  # an optimizer that scales the loss is called by the model's own step, and `train` ends with averages

    def _say_of_unused(self) -> None:
        pass  # `without_effect` has

    def _take_optimizers(self) -> None:
        """Register what the model's own `train_step` updates with; the first call of it has built them."""
        found = optimizers_of(self.keras_model)
        of_optimizers = {id(v.value) for optimizer in found.values() for v in optimizer.variables}
        for name in [name for name, variable in self.variables.items() if id(variable) in of_optimizers]:
            del self.variables[name]
        for name, optimizer in found.items():
            self.register_optimizer(name, optimizer)
        self.optimizer = found.get("optimizer", next(iter(found.values()), None))
        self.loss_scale = None  # which is the optimizer's concern

    @property
    def has_own_train_step(self) -> bool:
        return self.model.has_own_step

    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Do one iteration: that of the engine, or the model's own `train_step`; traced."""
        trace = tower_trace()
        if not self.has_own_train_step or trace is None:
            outputs = super().train_step(inputs)
            if self.config["model.accumulate_steps"] > 1:
                self.model.take_loss(outputs, inputs)
            return outputs
        with guarded(optimizers_of(self.keras_model), trace):
            outputs = dict(self.build(inputs, True))
            trace.weight = None  # a log of that name is only a log
        if self.optimizer is not None:
            outputs.setdefault("learning_rate", tf.convert_to_tensor(self.optimizer.learning_rate))
        return outputs

    def _look_at_data(self, built: BuiltModel) -> None:
        pass  # the data says how large a batch is

    @contextmanager
    def _around_run(self) -> Iterator[None]:
        with super()._around_run(), tensorflow_seeded(self.config["trainer.random_seed"]):
            yield

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
        **options: Any,
    ) -> keras.callbacks.History:
        """Train as `keras.Model.fit` does, with its arguments; with an experiment, going on where a run was stopped.

        Data is given once, here or to the constructor. Each further call trains for `epochs` more.

        Args:
            callbacks: of Keras and of prototrain. With an experiment a `ModelSaver` and a `SaveOnExit` are added.
            options: of `train`, such as ``fresh=True`` and ``allow_changed_data=True``.

        Returns:
            the metrics by epoch, those of the epochs before a resume too.

        Raises:
            DataError: there is no data, or data twice; or `initial_epoch`, which a resumed run knows itself.
            PrototrainError: the user's mistakes, and what went wrong in a step.
        """
        check_fit(epochs, initial_epoch, validation_freq, options)
        if x is None and "built" not in vars(self):
            raise DataError("fit: this KerasTrainer has no data yet: give it x, or the trainer a dataset")
        if x is not None:
            if "built" in vars(self):
                raise DataError("fit: this KerasTrainer has its data; make a new one for other data")
            # As in Keras, which holds nothing out where there is other data to validate on.
            data, split = fit_data(x, y, sample_weight, 0.0 if validation_data is not None else validation_split)
            sizes = batch_size, batch_size if validation_batch_size is None else validation_batch_size
            held_out = split if validation_data is None else validation_data
            self._begin(data, held_out, sizes, shuffle=shuffle, class_weight=class_weight)
        else:
            check_unused(
                "fit",
                "x",
                y=(y, None),
                batch_size=(batch_size, None),
                validation_split=(validation_split, 0.0),
                validation_data=(validation_data, None),
                shuffle=(shuffle, True),
                class_weight=(class_weight, None),
                sample_weight=(sample_weight, None),
                validation_batch_size=(validation_batch_size, None),
            )
        if "vld" not in self.datasets:
            of_turns = {"validation_steps": (validation_steps, None), "validation_freq": (validation_freq, 1)}
            check_unused("fit", "validation data", **of_turns)
        history = keras.callbacks.History()
        validation = (validation_steps or 0, validation_freq) if "vld" in self.datasets else None
        saves = self.experiment is not None
        chosen = fit_callbacks(callbacks, history, verbose=verbose, saves=saves, validation=validation)
        self.train(chosen, steps_per_epoch=steps_per_epoch, max_epoch=self._epochs + epochs, **options)
        self._epochs += epochs
        return history

    def _length(
        self, steps_per_epoch: int | None, max_epoch: int | None, max_steps: int | None
    ) -> tuple[int | None, int | None, int | None]:
        steps = steps_per_epoch
        if steps is None:
            steps = self.config["trainer.steps_per_epoch"] or self.data.cardinality
        if steps is None and (max_epoch is not None or self.config["model.num_epochs"] is not None):
            steps = self._passes = self._passes or self._count()
        return super()._length(steps, max_epoch, max_steps)

    def _count(self) -> int:
        """The number of batches in a pass whose length only reading it tells."""
        dataset = self.datasets["trn"]
        if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY or not self._can_be_counted:
            raise DataError(
                "the training data has no known end, or can be read only once: say how long an epoch is with "
                "steps_per_epoch=, or give the function that makes the generator"
            )
        with announcing("reading the training data once, to count its batches", self.log):
            steps = sum(1 for _ in dataset)
        self.data.rewind()  # whose order this reading may have moved on
        return steps

    def train(self, callbacks: Any = (), **length: Any) -> None:
        """Train; see `TowerTrainer.train`.

        Raises:
            ModelError: the model was compiled again since this trainer took it.
        """
        parts = zip(compiled_parts(self.keras_model), self._compiled, strict=True) if "built" in vars(self) else ()
        if any(now is not then for now, then in parts):
            raise ModelError(
                f"{self.keras_model.name} was compiled again since this KerasTrainer took it; make a new KerasTrainer"
            )
        super().train([_EpochMetrics(), *callbacks], **length)
        if self.optimizer is not None and self.optimizer.use_ema:
            self.optimizer.finalize_variable_values(list(self.trainable.values()))

    @property
    def unaveraged(self) -> Collection[str]:  # type: ignore[override]
        """Metrics too, which are means from the start of the epoch; "loss" is that of one step, unless it is a metric
        in a `train_step` of the model's own."""
        metrics = {name for name, _ in flat(self.keras_model.get_metrics_result())}
        if not (self.has_own_train_step and set(self.model.logged) == metrics):
            metrics.discard("loss")
        return {*super().unaveraged, *metrics}

    def _fit_logs(self) -> dict[str, Any]:
        found = {name: _plain(value) for name, value in flat(self.keras_model.get_metrics_result())}
        logged = self.model.logged
        besides = {name: self.outputs[name] for name in logged if name in self.outputs}
        if not self.has_own_train_step:
            besides.pop("loss", None)  # that of the step alone
            if getattr(self.keras_model.compute_metrics, "__func__", None) is keras.Model.compute_metrics:
                return {**besides, **found}
        elif set(logged) == found.keys():
            return found
        return {name: besides.get(name, found.get(name)) for name in logged if name in besides or name in found}

    def evaluate(self, dataset: str, batches: int = 0) -> dict[str, float] | None:
        """Evaluate the model as `keras.Model.evaluate` does; see `TowerTrainer.evaluate`."""
        if not isinstance(dataset, str):
            raise DataError(
                f"evaluate takes the name of a dataset, not a {type(dataset).__name__}; keras_model.evaluate takes data"
            )
        if dataset not in self.datasets:
            raise DataError(f"there is no dataset {dataset!r}; there are {', '.join(self.datasets)}")
        data = self.datasets[dataset].map(self.model.as_given(dataset))
        watching = [cb.callback for cb in map(innermost, self.callbacks) if isinstance(cb, KerasCallback)]
        return evaluated(self.keras_model, data, batches, stop=self.stop, watching=watching)

    def _rehearse(self, dataset: str, batches: int = 0) -> Collection[str] | None:
        """Evaluate two batches at most and forget it; see `Trainer.rehearse`."""
        if type(self).evaluate is not KerasTrainer.evaluate or reshuffles(self.datasets[dataset]):
            return None
        data = self.datasets[dataset].map(self.model.as_given(dataset))
        return rehearsed(self.keras_model, dataset, data, batches, stop=self.stop)

    def _describe_variables(self) -> tuple[str, str] | None:
        shown = {name: variable for name, variable in self.variables.items() if name not in self._of_metrics()}
        return layer_table(shown, self.trainable), str(variable_table(shown, self.trainable, self.decayed))

    def _facts(self) -> Facts:
        metrics = sorted({name.rpartition("/")[0] for name in self._of_metrics()})
        compiled = {name: value for name, value in self.model.compiled_with.items() if name != "optimizer"}
        return {**super()._facts(), "compiled with": {**compiled, "metrics": metrics}}

    @contextmanager
    def _fitted_to(self, saved: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any]) -> Iterator[None]:
        """Let metrics come and go: new ones begin to count where the run goes on.

        Earlier versions have saved an optimizer under each of its names, and all but one of these are gone.
        """
        then = dict(facts.get("compiled with") or {}).get("metrics") or []
        new = {name: self.state.pop(name) for name in self._of_metrics() if name not in saved}
        names = dict(named_optimizers(self.keras_model)).keys() - optimizers_of(self.keras_model).keys()
        others = tuple(f"{name}/" for name in names)
        unknown = [name for name in saved if name not in self.state]
        gone = [name for name in unknown if name.rpartition("/")[0] in then or name.startswith(others)]
        self.state.update({name: np.zeros(saved[name]["shape"], saved[name]["dtype"]) for name in gone})
        try:
            with super()._fitted_to(saved, facts):
                yield
        finally:
            for name in gone:
                del self.state[name]
            self.state.update(new)

    def _of_metrics(self) -> list[str]:
        """The names of the variables that metrics have."""
        metrics = {id(variable.value) for variable in self.keras_model.metrics_variables}
        return [name for name, variable in self.variables.items() if id(variable) in metrics]


class _MissingError(DataError, AttributeError):
    """An AttributeError too, for whoever asks whether there is something."""


class _EpochMetrics(Callback):
    """Lets metrics count anew from the start of each epoch."""

    def before_epoch(self) -> None:
        if self.trainer.local_step == 0:
            self.trainer.keras_model.reset_metrics()


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    return array.item() if array.size == 1 else array
