"""A Keras model that was compiled elsewhere, trained by the compiled loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.callbacks.helping.keras_callback import KerasCallback
from prototrain.callbacks.proxies import innermost
from prototrain.config import Config
from prototrain.config.json_form import encode
from prototrain.data.elements import batch_size
from prototrain.data.knowledge import reshuffles, unseeded
from prototrain.errors import DataError, ModelError
from prototrain.experiment import Experiment, source_of
from prototrain.model.evaluation import REHEARSED, random_state_kept, values_kept
from prototrain.model.variables import select, variable_table
from prototrain.trainers.tower import SimpleTrainer

Data: TypeAlias = tf.data.Dataset | Callable[[], tf.data.Dataset]

_PARTS = ("x", "y", "sample_weight")


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
        model: compiled, of one device, and without a `train_step` of its own.
        dataset: gives ``(x, y)``, ``(x, y, sample_weight)`` or x alone, batched; or a function that makes it. A
            function can be called again under the same seed, so that data without a seed resumes exactly.
        validation: such a dataset for the `Validation` callback, named "vld".
        experiment: the directory of the run, if it is to leave anything behind.
        config: keys for `default_callbacks(trainer.model)` and `train`, such as ``{"trainer.print_interval": 10}``.

    Attributes:
        keras_model: the model that was given; `model` is what the loop sees of it.

    Raises:
        ModelError: the model is not compiled, or has a `train_step` of its own.
        DataError: the dataset is empty, or none.
    """

    model: _Adapter

    def __init__(
        self,
        model: keras.Model,
        dataset: Data,
        *,
        validation: Data | None = None,
        experiment: Experiment | str | Path | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        _check(model)
        self.keras_model = model
        self._may_train: set[str] = set()
        adapter = _Adapter(model, dataset, validation, config or {})
        super().__init__(adapter, experiment=experiment)
        model.reset_metrics()

    def create_optimizers(self) -> None:
        """Take the optimizer that the model was compiled with."""
        # The Keras variables themselves, since the optimizer asks them for constraints.
        names = {id(variable): name for name, variable in self.variables.items()}
        trained = {names[id(v.value)]: v for v in self.keras_model.trainable_variables if id(v.value) in names}
        self.trainable = select(trained, self.config, "model.trainable_variables")
        # Scaling of the loss is the engine's, which knows what to do after an overflow.
        self.optimizer = getattr(self.keras_model.optimizer, "inner_optimizer", self.keras_model.optimizer)
        if not self.optimizer.built:
            self.optimizer.build(self.keras_model.trainable_variables)
        elif self._may_train and not self.trainable.keys() <= self._may_train:
            raise ModelError(
                f"layers of {self.keras_model.name} are trainable now that were not when its optimizer was built; "
                "compile it again, as for fit, and make a new KerasTrainer"
            )
        self._may_train = self._may_train or set(self.trainable)
        self.register_optimizer("optimizer", self.optimizer)

    def train(self, callbacks: Any = (), **length: Any) -> None:
        """Train; see `TowerTrainer.train`."""
        super().train([_EpochMetrics(), *callbacks], **length)
        if self.optimizer.use_ema:
            self.optimizer.finalize_variable_values(list(self.trainable.values()))

    def evaluate(self, dataset: str, batches: int = 0) -> dict[str, float] | None:
        """Evaluate the model as `keras.Model.evaluate` does; see `TowerTrainer.evaluate`."""
        if dataset not in self.datasets:
            raise DataError(f"there is no dataset {dataset!r}; there are {', '.join(self.datasets)}")
        model = self.keras_model
        data = self.datasets[dataset].map(self.model.as_given)
        watching = [cb.callback for cb in map(innermost, self.callbacks) if isinstance(cb, KerasCallback)]
        callbacks = keras.callbacks.CallbackList([_LeaveOff(self), *watching], model=model)
        of_training = [(variable, tf.identity(variable)) for variable in model.metrics_variables]
        found = model.evaluate(data, steps=batches or None, callbacks=callbacks, verbose=0, return_dict=True)
        for variable, value in of_training:
            variable.assign(value)
        return None if self.stop.signum is not None else found

    def rehearse(self, dataset: str, batches: int = 0) -> None:
        """Evaluate two batches at most and forget it; see `Trainer.rehearse`."""
        model = self.keras_model
        if type(self).evaluate is not KerasTrainer.evaluate or reshuffles(self.datasets[dataset]):
            return
        data = self.datasets[dataset].map(self.model.as_given).take(min(batches or REHEARSED, REHEARSED))
        changing = [variable.value for variable in (*model.non_trainable_variables, *model.metrics_variables)]
        with random_state_kept(), values_kept(changing):
            model.evaluate(data, verbose=0)

    def describe_more(self) -> list[str]:
        metrics = {id(variable.value) for variable in self.keras_model.metrics_variables}
        shown = {name: variable for name, variable in self.variables.items() if id(variable) not in metrics}
        return [variable_table(shown, self.trainable, self.decayed)]

    def resume_caveats(self) -> list[str]:
        found = super().resume_caveats()
        if self.data.caveat is None and unseeded(self.datasets["trn"]):
            found.append("the dataset is shuffled without a seed (give shuffle(seed=...), or a function that makes it)")
        return found

    def provenance(self) -> dict[str, Any]:
        return {**super().provenance(), "compiled with": self.model.compiled_with}


class _Adapter:
    """A compiled Keras model, as the protocol of models wants it."""

    def __init__(self, model: keras.Model, trn: Data, vld: Data | None, config: Mapping[str, Any]) -> None:
        self._model = model
        self._given = {"trn": trn} if vld is None else {"trn": trn, "vld": vld}
        first = _made(trn)
        self._structure = keras.utils.unpack_x_y_sample_weight(first.element_spec)
        self.name = model.name
        self.source = None if type(model).__module__.startswith("keras.") else source_of(model)
        self.compiled_with = _settings(model)
        self.config = Config(
            {
                "trainer.experiment_name": model.name,
                "trainer.validation_batches": 0,
                "model.batch_size": _batch_size(first),
                "model.jit_compile": bool(model.jit_compile),
                **config,
            }
        )
        if model.dtype_policy.name.startswith("mixed_"):
            self.config["model.mixed_precision"] = model.dtype_policy.name

    def datasets(self) -> dict[str, tf.data.Dataset]:
        return {name: _made(data).map(_as_dict) for name, data in self._given.items()}

    def build(self, inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        x, y, sample_weight = self._parts(inputs)
        model = self._model
        y_pred = model(x, training=train_phase)
        net = _named("y_pred", y_pred)
        if y is None and self._structure[1] is not None:
            return net
        loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=train_phase)
        if train_phase:
            for metric in model.metrics:
                if metric.name == "loss":  # Keras's own, which its `train_step` would keep
                    metric.update_state(loss, sample_weight=batch_size(inputs))
            net.update(model.compute_metrics(x, y, y_pred, sample_weight=sample_weight))
        return {**net, "loss": loss}

    def as_given(self, inputs: dict[str, Any]) -> tuple[Any, ...]:
        """A batch as the user's dataset gives it."""
        return tuple(part for part in self._parts(inputs) if part is not None)

    def _parts(self, inputs: dict[str, Any]) -> list[Any]:
        """What the batch has of x, y and sample_weight; None for what it has not."""
        found = []
        for name, structure in zip(_PARTS, self._structure, strict=True):
            names = [] if structure is None else list(_named(name, structure))
            there = bool(names) and (name == "x" or inputs.keys() >= set(names))
            found.append(keras.tree.pack_sequence_as(structure, [inputs[n] for n in names]) if there else None)
        return found


class _EpochMetrics(Callback):
    """Lets metrics count anew from the start of each epoch."""

    def before_epoch(self) -> None:
        if self.trainer.local_step == 0:
            self.trainer.keras_model.reset_metrics()


class _LeaveOff(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends an evaluation when a stop is requested."""

    def __init__(self, trainer: KerasTrainer) -> None:
        super().__init__()
        self._trainer = trainer

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_evaluating = self._trainer.stop.signum is not None


def _check(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise ModelError(f"KerasTrainer takes a keras.Model, not {type(model).__name__}")
    if not model.compiled or model.optimizer is None:
        raise ModelError(f"{model.name} has no optimizer: call its compile(optimizer=..., loss=...) first")
    if type(model).train_step is not keras.Model.train_step:
        raise ModelError(
            f"{model.name} has a train_step of its own, which the compiled loop does not call; write it as the "
            "train_step of a class derived from SimpleTrainer"
        )
    if getattr(model.optimizer, "loss_scale_factor", None):
        raise ModelError(
            f"the optimizer of {model.name} has a loss_scale_factor, which the compiled loop does not know; "
            'leave it out: with the policy "mixed_float16" the engine scales the loss'
        )
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ModelError(f"{model.name} was made for several devices; KerasTrainer has one")


def _made(data: Data) -> tf.data.Dataset:
    made = data() if callable(data) else data
    if not isinstance(made, tf.data.Dataset):
        raise DataError(
            f"KerasTrainer takes a tf.data.Dataset of (x, y), batched, or a function that makes one, not "
            f"{type(made).__name__}; tf.data.Dataset.from_tensor_slices((x, y)).batch(32) makes one of arrays"
        )
    return made


def _batch_size(dataset: tf.data.Dataset) -> int:
    for batch in dataset.take(1).map(_as_dict):
        return int(batch_size(batch))
    raise DataError("the training dataset is empty")


def _as_dict(*element: Any) -> dict[str, Any]:
    parts = zip(_PARTS, keras.utils.unpack_x_y_sample_weight(element), strict=True)
    return {path: value for name, part in parts if part is not None for path, value in _named(name, part).items()}


def _named(name: str, structure: Any) -> dict[str, Any]:
    """The leaves of a nested structure by their paths."""
    return {"/".join(map(str, (name, *path))): leaf for path, leaf in keras.tree.flatten_with_path(structure)}


def _settings(model: keras.Model) -> dict[str, Any]:
    """What `compile` was given, as JSON can hold it; without the learning rate, which every checkpoint holds."""
    optimizer = {name: value for name, value in model.optimizer.get_config().items() if name != "learning_rate"}
    return {"optimizer": encode(optimizer, "optimizer", []), "loss": encode(model.loss, "loss", [])}
