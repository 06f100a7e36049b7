"""A model built on towers: its datasets, its variables, and its evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from prototrain.checkpoint.state import check_fit
from prototrain.checkpoint.store import Checkpoint
from prototrain.checkpoint.weights import Source, averaged_weights, load_report_table, load_weights
from prototrain.data.adapters import as_datasets
from prototrain.data.batches import first_part, limited
from prototrain.data.positions import training_data
from prototrain.data.source import Share, bind_worker
from prototrain.errors import DataError, ModelError
from prototrain.experiment import home_of, source_of
from prototrain.experiment.facts import Facts, file_digests
from prototrain.model.evaluation import Evaluation, require_end
from prototrain.model.layer_cache import LayerCache
from prototrain.model.loading import Model
from prototrain.model.net import check_net, describing_batch, loss_weight, scalars
from prototrain.model.placement import Placement
from prototrain.model.variables import select
from prototrain.predictor import Predictor
from prototrain.step.variables import StepCounter
from prototrain.system.signals import StopRequest
from prototrain.system.terminal import announcing, shorten_list
from prototrain.tf_private import KerasVariable
from prototrain.towers import building

if TYPE_CHECKING:
    from prototrain.model.loading import ModelProtocol


class BuiltModel:
    """A model built on towers: its data, its variables, and its compiled evaluations.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        placement: the towers; by default one tower on the default device.
        datasets: replaces the model's `datasets`.
        repeats_data: whether to repeat finite training data.
        share: the worker that reads the data.
        check_data: called with this object after the data is loaded, before the model is built.
        check: called with the result of `build` for training; raises an error if it cannot be trained on.
        stop: ends an evaluation when a stop is requested; by default a silent request.
        counter: counts the completed steps.
        log: prints a line for the user.

    Attributes:
        data: the training data and its position.
        datasets: the datasets of the model by name.
        element_spec: the spec of a training batch.
        layers: the layers and variables that all calls of `build` share.
        variables: the model's variables by name.
        trainable: the variables that are trained, by name.
        decayed: the trained variables with weight decay, by name.
        policy: the name of the Keras dtype policy of the layers.

    Raises:
        ModelError, DataError, ConfigError: the model violates the protocol.
    """

    def __init__(
        self,
        model: ModelProtocol,
        placement: Placement | None = None,
        *,
        datasets: Callable[[], dict[str, tf.data.Dataset]] | None = None,
        repeats_data: bool = True,
        share: Share = Share(),  # noqa: B008 - it is frozen
        check_data: Callable[[BuiltModel], object] = lambda built: None,
        check: Callable[[Any], object] = check_net,
        stop: StopRequest | None = None,
        counter: StepCounter | None = None,
        log: Callable[[str], None] = print,
    ) -> None:
        self.model = model
        self.config = model.config
        self.placement = Placement() if placement is None else placement
        self.stop = StopRequest(lambda text: None) if stop is None else stop
        self.counter = StepCounter() if counter is None else counter
        self.counter.prepare()
        self._evaluations: dict[str, Evaluation] = {}
        # Keras stores the policy per thread, each tower is traced in its own thread, and `clear_session` resets it.
        self.policy: str = self.config["model.mixed_precision"] or keras.config.dtype_policy().name
        seed = self.config["trainer.random_seed"]
        # Keras numbers layer names per process, but a run's variables need the same names in every process.
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(seed)
        self._sources = file_digests([self.source])  # before the imported files are edited
        limits = {name: self.config[f"trainer.{name}_batches"] for name in ("limit", "overfit")}
        self.data = training_data(
            limited(partial(datasets_of, model, share) if datasets is None else datasets, **limits),
            seed=seed,
            announce=log,
            batch_size=self.config["model.batch_size"] * self.placement.parts // self.placement.towers,
            repeat=repeats_data,
            share=share,
            data_position=self.config["trainer.data_position"],
        )
        self.datasets = self.data.datasets
        self.element_spec: Mapping[str, Any] = self.data.element_spec
        check_data(self)
        keras.utils.set_random_seed(seed)
        self.layers = LayerCache()
        with announcing("building the model", log):
            self._create_variables(check)
        self.variables = dict(self.layers.variables)
        self._weights = self.layers.trainable
        with self.placement.strategy.scope():
            self.trainable = select(self._weights, self.config, "model.trainable_variables")
            decays = bool(self.config["model.weight_decay.value"] or self.config["model.weight_decay.l1"])
            self.decayed = select(self.trainable, self.config, "model.weight_decay") if decays else {}

    def _create_variables(self, check: Callable[[Any], object]) -> None:
        """Call `build` on a real batch to create the variables, then trace it once to check that it reuses them."""
        parts = self.placement.parts * self.config["model.accumulate_steps"]
        first = first_part(self.data.first_batch, parts)
        spec = self.element_spec if parts == 1 else tf.nest.map_structure(tf.type_spec_from_value, first)
        creating = self.layers.creating(self.placement.strategy, self.placement.make_variable)
        with self._building(True), creating, describing_batch(first):
            net = self.model.build(first, True)
        check(net)

        def build(inputs: Any) -> list[Any]:
            check(self.model.build(inputs, True))
            return []

        with self._building(True), describing_batch(spec):
            self.layers.add_used(build, spec)
        if loss_weight(net) is None or self.placement.towers == 1:
            return
        if names := [layer.name for layer in self.layers.all_layers() if getattr(layer, "synchronized", False)]:
            raise ModelError(
                f"build() returns 'loss_weight', and {names[0]} is a BatchNormalization(synchronized=True), whose "
                "gradients mix the towers before the weights apply; use synchronized=False, or one tower"
            )

    @contextmanager
    def _building(self, train_phase: bool, tower: int | None = None) -> Iterator[None]:
        """Context manager that sets `current_tower`, and the dtype policy of new layers."""
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.policy)
        try:
            with building(self.placement.towers, train_phase, tower, self.counter.read):
                yield
        finally:
            keras.config.set_dtype_policy(before)

    def build(self, inputs: dict[str, Any], train_phase: bool) -> Mapping[str, Any]:
        """Build one tower on its batch, with the variables that all towers and modes share; returns tensors by name.

        Raises:
            ModelError: `build` does not return a mapping, reads a name that the inputs lack, or makes other layers or
                variables than its first call.
        """
        tower = self.placement.tower_to_build()
        with self._building(train_phase, tower), self.layers.sharing(), describing_batch(inputs):
            return check_net(self.model.build(inputs, train_phase))

    def check_trainable(self) -> None:
        """Raise a ModelError if `trainable` of a layer has changed since the model was built."""
        if changed := sorted(self.layers.trainable.keys() ^ self._weights.keys()):
            raise ModelError(
                f"`trainable` of {shorten_list(changed)} has changed since the trainer was created, and the step "
                "ignores the change; create a new trainer and load this trainer's variables with load_weights()"
            )

    def keras_variables(self, variables: Iterable[Any]) -> dict[str, Any]:
        """Return variables by name, as Keras variables where layers have them, for optimizers.

        Raises:
            ModelError: a variable does not belong to the model.
        """
        names = {id(variable): name for name, variable in self.variables.items()}
        found = {}
        for variable in variables:
            variable = variable.value if isinstance(variable, KerasVariable) else variable
            if id(variable) not in names:
                raise ModelError(
                    f"{variable.name} is not a variable of the model; create its layer in build(), or build the "
                    "optimizer with optimizer.build(variables) and register it without variables"
                )
            found[names[id(variable)]] = self.layers.keras_variable(variable)
        return found

    def with_keras_variables(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Replace TensorFlow variables in (gradient, variable) pairs by Keras variables, which have constraints."""
        return [(gradient, self.layers.keras_variable(variable)) for gradient, variable in pairs]

    def evaluate(self, dataset: str, batches: int = 0) -> dict[str, float] | None:
        """Average the model's scalars over a dataset, without training; see `Evaluation`.

        Args:
            dataset: name of the dataset, such as "vld".
            batches: number of batches from the start; 0 for all.

        Returns:
            the scalars by name, or None if a stop was requested before the end.

        Raises:
            DataError: there is no such dataset, it is empty or has no end, all weights are 0, or `batches` is negative.
            StepError: reading or evaluating failed.
        """
        evaluation = self.evaluation(dataset)
        if batches < 0:
            raise DataError(f"evaluate: batches must be at least 0, which is the whole dataset; got {batches}")
        if not batches:
            require_end(dataset, self.datasets[dataset])
        return evaluation.run(self.stop, batches, step=self.counter.step)

    def evaluation(self, dataset: str) -> Evaluation:
        """Return the compiled evaluation of a dataset; raises a DataError if there is no such dataset."""
        if not isinstance(dataset, str) or dataset not in self.datasets:
            what = f"datasets() gives no {dataset!r}" if isinstance(dataset, str) else "evaluate takes a name"
            raise DataError(f"{what}; name one of {', '.join(self.datasets)}")
        if dataset not in self._evaluations:
            self._evaluations[dataset] = Evaluation(dataset, self.datasets[dataset], self._scalars, self.layers)
        return self._evaluations[dataset]

    def _scalars(self, inputs: dict[str, Any]) -> tuple[dict[str, tf.Tensor], tf.Tensor | None]:
        net = self.build(inputs, False)
        return scalars(net, require_loss=False), loss_weight(net)

    def get_predictor(self, input_names: Sequence[str], output_names: Sequence[str]) -> Predictor:
        """Return a function from arrays to arrays; see `Predictor`."""
        return Predictor(self, input_names, output_names)

    def load_weights(self, source: Source, **options: Any) -> str:
        """Load the matching weights and return a table of them; see `prototrain.checkpoint.weights.load_weights`."""
        report = load_weights(self.variables, source, **options)
        self.layers.mark_trained(report["loaded"], False)
        self.refresh()
        where = f"{len(source)} arrays" if isinstance(source, Mapping) else source
        return f"weights from {where}\n{load_report_table(report)}"

    def restore_weights(self, checkpoint: Checkpoint, *, cure: str) -> bool:
        """Load the weights of a checkpoint of the same model; returns whether they are moving averages.

        Raises:
            CheckpointError: the checkpoint is damaged, or belongs to another model. The message ends with `cure`.
        """
        saved = checkpoint.tensors()
        averages = averaged_weights(saved)
        self.assign({**saved, **averages}, str(checkpoint.path), cure=cure)
        self.counter.step = checkpoint.step
        return bool(averages)

    def assign(self, values: Mapping[str, Any], where: str, *, cure: str) -> None:
        """Assign a value to every variable; raises a CheckpointError if one is missing or has another shape."""
        mine = {name: value for name, value in values.items() if name in self.variables}
        check_fit(self.variables, mine, where, cure=cure)
        for name, value in mine.items():
            self.variables[name].assign(value)
        self.refresh()

    def refresh(self) -> None:
        """Make layers compute with the present values of their variables, after these were loaded or restored."""
        normalizing = [one for one in self.layers.all_layers() if isinstance(one, keras.layers.Normalization)]
        for layer in normalizing:  # its call uses constants
            layer.finalize_state()
        if normalizing:
            self._evaluations.clear()  # their traces contain the old constants

    @property
    def source(self) -> Path | None:
        """The package or file that defines the model."""
        return self.model.source if hasattr(self.model, "source") else source_of(self.model)

    @property
    def name(self) -> str:
        """The model's name in tables."""
        return str(getattr(self.model, "name", type(self.model).__name__))

    def facts(self) -> Facts:
        """Return the config and the source file digests of the model, for a checkpoint."""
        return {"config": self.config.facts(), "sources": self._sources}

    def origin(self) -> dict[str, Any]:
        """Return "data", the description of the pipeline, and the "model" and "modules" of a model loaded by name."""
        data = {name: self.data.fingerprint.get(name) for name in ("stages", "file names", "file sizes")}
        found: dict[str, Any] = {"data": data}
        if isinstance(self.model, Model):
            module = self.model.name.partition(":")[0]
            home = home_of(sys.modules.get(module))
            modules = {} if home is None else {module: str(home.resolve())}
            found.update(model=self.model.name, modules=modules)
        return found


def datasets_of(model: ModelProtocol, share: Share) -> dict[str, tf.data.Dataset]:
    """Return the `tf.data` datasets of a model for a worker."""
    found: dict[str, tf.data.Dataset] = as_datasets(bind_worker(model.datasets, share)(), model.config)
    return found
