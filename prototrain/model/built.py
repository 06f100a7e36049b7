"""A model built on some towers: its datasets, its variables, and what can be asked of it without training."""

from __future__ import annotations

import re
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
from prototrain.data.batches import first_dimensions, first_part, limited
from prototrain.data.iterator import DataIterator
from prototrain.data.source import Share, for_worker
from prototrain.errors import CallbackError, DataError, ModelError, OutOfMemoryError
from prototrain.experiment import home_of, source_of
from prototrain.experiment.facts import Facts, file_digests
from prototrain.model.evaluation import Evaluation
from prototrain.model.layer_cache import LayerCache
from prototrain.model.loading import Model
from prototrain.model.net import check_net, loss_weight, naming_batch, scalars
from prototrain.model.placement import Placement
from prototrain.model.variables import select, variable_table
from prototrain.predictor import Predictor
from prototrain.step.summaries import without_summaries
from prototrain.step.variables import StepCounter
from prototrain.system.signals import StopRequest
from prototrain.system.terminal import Table
from prototrain.system.tracebacks import out_of_memory
from prototrain.system.waiting import announcing
from prototrain.system.wording import did_you_mean
from prototrain.towers import building

if TYPE_CHECKING:
    from prototrain.model.loading import ModelProtocol


class BuiltModel:
    """A model built on some towers: its data, its variables, and its compiled evaluations.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`, to be trained or only used.
        placement: the towers; one on the default device if None.
        datasets: instead of the model's `datasets`.
        repeats_data: whether finite training data is repeated.
        share: which of several workers reads the data.
        look: called with this object when the data is there, before the model is built.
        check: called with what `build` returns for training; raises an error if it cannot be trained on.
        stop: ends an evaluation; one that prints nothing if None.
        counter: counts the completed steps; one that stays at 0 if None.
        log: prints a line for the user.

    Attributes:
        model, config, placement, counter, stop: what was given.
        data: the training data and its position.
        datasets: everything that the model's `datasets` returned, by name.
        element_spec: the form of a training batch.
        layers: the layers and variables that all calls of `build` share.
        variables: the model's variables by name; `trainable` and `decayed` are the chosen ones among them.
        policy: the name of the Keras policy that says in which precision layers compute.

    Raises:
        ModelError, DataError, ConfigError: the model does not keep to the protocol.
    """

    def __init__(
        self,
        model: ModelProtocol,
        placement: Placement | None = None,
        *,
        datasets: Callable[[], dict[str, tf.data.Dataset]] | None = None,
        repeats_data: bool = True,
        share: Share = Share(),  # noqa: B008 - it is frozen
        look: Callable[[BuiltModel], object] = lambda built: None,
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
        # Kept here, since Keras has it per thread (each tower is traced in its own thread) and clears it below.
        self.policy: str = self.config["model.mixed_precision"] or keras.config.dtype_policy().name
        seed = self.config["trainer.random_seed"]
        # Layer names count up per process; a run's variables must have the same names in every process.
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(seed)
        self._sources = file_digests([self.source])  # before anyone edits what this process has imported
        limits = {name: self.config[f"trainer.{name}_batches"] for name in ("limit", "overfit")}
        self.data = DataIterator(
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
        look(self)
        keras.utils.set_random_seed(seed)
        self.layers = LayerCache()
        try:
            with announcing("building the model", log):
                self._create_variables(check, log)
        except (MemoryError, tf.errors.OpError) as error:
            if (asked := out_of_memory(error)) is None:
                raise
            raise OutOfMemoryError(f"out of memory: building the model: {asked}") from error
        self.variables = dict(self.layers.variables)
        self._weights: dict[str, tf.Variable] = {}
        self.trainable: dict[str, Any] = {}
        self.decayed: dict[str, Any] = {}
        self.choose_trained()

    def _create_variables(self, check: Callable[[Any], object], log: Callable[[str], None]) -> None:
        """Call `build` on a real batch, which creates the variables, and once more, which must find all of them."""
        parts = self.placement.parts * self.config["model.accumulate_steps"]
        first = first_part(self.data.first_batch, parts)
        spec = self.element_spec if parts == 1 else tf.nest.map_structure(tf.type_spec_from_value, first)
        creating = self.layers.creating(self.placement.strategy, self.placement.declare_variable)
        with self._building(True), creating, naming_batch(first):
            net = self.model.build(first, True)
        check(net)
        is_weighted = loss_weight(net) is not None
        sizes = {path: int(size) for path, size in first_dimensions(self.data.first_batch).items()}
        if "loss" in net and not is_weighted and len(set(sizes.values())) > 1:
            listed = ", ".join(f"{path} {size}" for path, size in sizes.items())
            log(
                f"the tensors of a training batch have different first dimensions ({listed}), and build() returns no "
                "'loss_weight': all batches have the same weight"
            )

        def build(inputs: Any) -> list[Any]:
            check(self.model.build(inputs, True))
            return []

        with self._building(True):
            self.layers.adopt(build, spec)
        for layer in self.layers.all_layers() if is_weighted and self.placement.towers > 1 else ():
            if getattr(layer, "synchronized", False):
                raise ModelError(
                    f"build() returns 'loss_weight', and {layer.name} is a BatchNormalization(synchronized=True), "
                    "whose gradients mix the towers before the weights apply; use synchronized=False, or one tower"
                )

    @contextmanager
    def _building(self, train_phase: bool, tower: int | None = None) -> Iterator[None]:
        """Let `current_tower` answer, and layers compute in the precision of `policy`."""
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.policy)
        try:
            with building(self.placement.towers, train_phase, tower, self.counter.read):
                yield
        finally:
            keras.config.set_dtype_policy(before)

    def build(self, inputs: dict[str, Any], train_phase: bool) -> Mapping[str, Any]:
        """Build one tower on its batch, with the variables that all towers and modes share; returns tensors by name."""
        tower = self.placement.tower_to_build()
        with self._building(train_phase, tower), self.layers.sharing(), without_summaries():
            return check_net(self.model.build(inputs, train_phase))

    # -- what is trained ----------------------------------------------------------------------------------------------

    def choose_trained(self) -> bool:
        """Choose the variables that are trained and those that decay; returns whether they are others than before."""
        weights = self.layers.trainable
        if weights.keys() == self._weights.keys():
            return False
        self._weights = weights
        with self.placement.scope():
            self.trainable = select(weights, self.config, "model.trainable_variables")
            decays = bool(self.config["model.weight_decay.value"] or self.config["model.weight_decay.l1"])
            self.decayed = select(self.trainable, self.config, "model.weight_decay") if decays else {}
        return True

    def weights_to_change(self, who: str, regex: str, value: bool) -> dict[str, Any]:
        """The weights that a regular expression matches, see `LayerCache.matching`, by name.

        Raises:
            CallbackError: there are none, or they cannot be trained although `value` is true; `who` begins the message.
        """
        try:
            found = {name: self.variables[name] for name in self.layers.matching(regex)}
        except re.error as error:
            raise CallbackError(f"{who}: {regex!r} is not a regular expression: {error}") from error
        weights = {name: variable for name, variable in found.items() if variable.trainable}
        if not weights:
            known = [name for name, variable in self.variables.items() if variable.trainable]
            names = [*self.layers.layers, *(name.rpartition("/")[0] for name in known), *known]
            what = "nothing that could be trained" if found else "no layer and no variable"
            near = did_you_mean(regex, names) or f"; there are {', '.join(list(dict.fromkeys(names))[:3])}, ..."
            raise CallbackError(f"{who}: {regex!r} is the name of {what}{near}")
        allowed = select(self.variables, self.config, "model.trainable_variables") if value else weights
        if left_out := [name for name in weights if name not in allowed]:
            raise CallbackError(
                f"{who}: model.trainable_variables leaves out {left_out[0]}, which is to be trained; freeze it with "
                "SetTrainable(..., False).at(step=0), or in build(), instead"
            )
        return weights

    @property
    def frozen(self) -> dict[str, bool]:
        """False for each weight whose layer is not trainable, by name."""
        return {name: False for name, v in self.variables.items() if v.trainable and name not in self._weights}

    # -- Keras's part -------------------------------------------------------------------------------------------------

    @property
    def keras_layers(self) -> dict[str, keras.layers.Layer]:
        """The Keras layers that `build` makes or calls, by name."""
        return dict(self.layers.layers)

    def keras_variables(self, variables: Iterable[Any]) -> dict[str, Any]:
        """Variables of the model by name, as optimizers want them: those that hold them in Keras, if there are."""
        names = {id(variable): name for name, variable in self.variables.items()}
        return {names[id(variable)]: self.layers.keras_variable(variable) for variable in variables}

    def with_keras_variables(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """A gradient processor that replaces TensorFlow's variables with Keras's, which know their constraints."""
        return [(gradient, self.layers.keras_variable(variable)) for gradient, variable in pairs]

    def layer_loss(self) -> tf.Tensor | None:
        """The sum of the layers' losses in the last `build` of this tower; None if there are none; traced."""
        return self.layers.loss()

    # -- using it -----------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The number of completed steps that the variables are of."""
        return self.counter.step

    def evaluate(self, dataset: str, batches: int = 0) -> dict[str, float] | None:
        """Average the model's scalars over a dataset, without training; see `Evaluation`.

        Args:
            dataset: its name, such as "vld".
            batches: how many batches from the start; 0 for all.

        Returns:
            the scalars by name, or None if a stop was requested before the end.

        Raises:
            DataError, StepError: there is no such dataset, it is empty, or reading or evaluating failed.
        """
        return self.evaluation(dataset).run(self.stop, batches, step=self.step)

    def evaluation(self, dataset: str) -> Evaluation:
        """The compiled evaluation of a dataset; raises a DataError if there is no such dataset."""
        if dataset not in self.datasets:
            raise DataError(f"datasets() gives no {dataset!r}; it gives {', '.join(self.datasets)}")
        if dataset not in self._evaluations:
            self._evaluations[dataset] = Evaluation(dataset, self.datasets[dataset], self._scalars)
        return self._evaluations[dataset]

    def _scalars(self, inputs: dict[str, Any]) -> tuple[dict[str, tf.Tensor], tf.Tensor | None]:
        with naming_batch(inputs):
            net = self.build(inputs, False)
        return scalars(net, require_loss=False), loss_weight(net)

    def get_predictor(self, input_names: Sequence[str], output_names: Sequence[str]) -> Predictor:
        """A function from arrays to arrays; see `Predictor`."""
        return Predictor(self, input_names, output_names)

    # -- weights ------------------------------------------------------------------------------------------------------

    def load_weights(self, source: Source, **options: Any) -> str:
        """Load the weights that match, see `prototrain.checkpoint.weights.load_weights`; returns a table of them."""
        report = load_weights(self.variables, source, **options)
        self.layers.note_loaded(report["loaded"])
        where = f"{len(source)} arrays" if isinstance(source, Mapping) else source
        return f"weights from {where}\n{load_report_table(report)}"

    def restore_weights(self, checkpoint: Checkpoint, *, cure: str) -> bool:
        """Load the weights of a checkpoint of the same model; returns whether they are moving averages.

        Raises:
            CheckpointError: it is damaged, or of another model; the message ends with `cure`.
        """
        saved = checkpoint.tensors() if checkpoint.meta["variables"] else {}
        averages = averaged_weights(saved)
        self.assign({**saved, **averages}, str(checkpoint.path), cure=cure)
        self.counter.step = checkpoint.step
        return bool(averages)

    def assign(self, values: Mapping[str, Any], where: str, *, cure: str) -> None:
        """Set every variable to its value among these, by name.

        Raises:
            CheckpointError: one is missing or has another shape; the message names `where` and ends with `cure`.
        """
        mine = {name: value for name, value in values.items() if name in self.variables}
        check_fit(self.variables, mine, where, cure=cure)
        for name, value in mine.items():
            self.variables[name].assign(value)

    # -- facts --------------------------------------------------------------------------------------------------------

    @property
    def source(self) -> Path | None:
        """The package or file that the model was written in."""
        return self.model.source if hasattr(self.model, "source") else source_of(self.model)

    @property
    def name(self) -> str:
        """What tables call the model."""
        return str(getattr(self.model, "name", type(self.model).__name__))

    def table(self, decays: str = "decays") -> Table:
        """The variables, and what happens to each of them; `decays` is the last column's header."""
        return variable_table(self.variables, self.trainable, self.decayed, decays=decays)

    def facts(self) -> Facts:
        """The config and the files of the model, for the record in a checkpoint."""
        return {"config": self.config.facts(), "sources": self._sources}

    def origin(self) -> dict[str, Any]:
        """What the model and its data were made from: the "model" by name with its "modules", and the "data"."""
        data = {name: self.data.fingerprint.get(name) for name in ("stages", "file names", "file sizes")}
        found: dict[str, Any] = {"data": data}
        if isinstance(self.model, Model):
            module = self.model.name.partition(":")[0]
            home = home_of(sys.modules.get(module))
            modules = {} if home is None else {module: str(home.resolve())}
            found.update(model=self.model.name, modules=modules)
        return found


def datasets_of(model: ModelProtocol, share: Share) -> dict[str, tf.data.Dataset]:
    """What a model's `datasets` gives one of several workers, as datasets."""
    found: dict[str, tf.data.Dataset] = as_datasets(for_worker(model.datasets, share)(), model.config)
    return found
