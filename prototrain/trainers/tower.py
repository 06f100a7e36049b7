"""Trainers whose iteration is a TensorFlow graph on one tower or several."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from prototrain.checkpoint.weights import load_report_table, load_weights, select, variable_table
from prototrain.data.batches import check_divides, first_part
from prototrain.data.pipeline import named_files, reshuffles
from prototrain.data.stream import TrainingData
from prototrain.errors import DataError, ModelError
from prototrain.experiment import Experiment, home_of, source_of
from prototrain.experiment.data_files import describe_files, noting_files
from prototrain.experiment.provenance import config_provenance, source_digest
from prototrain.model import Model
from prototrain.model.evaluation import Evaluation
from prototrain.model.outputs import check_net, scalars
from prototrain.model.sharing import VariableStore
from prototrain.optimizers import global_norm, make_optimizer, named_slots, processors_from_config
from prototrain.step.compiled_call import CompiledSteps
from prototrain.step.loss_scale import LossScale, dtype_policy, over_micro_batches
from prototrain.towers import building
from prototrain.trainers.placement import PlacedTrainer

if TYPE_CHECKING:
    from prototrain.callbacks.base import Callback
    from prototrain.config import Config
    from prototrain.model import ModelProtocol

GradientsAndVariables = list[tuple[Any, tf.Variable]]


class TowerTrainer(PlacedTrainer):
    """Builds a model once per tower and trains it with many steps per compiled call.

    Override `train_step` to change what one traced iteration does with one tower's batch and keep the compiled call;
    override `run_step` to do each iteration in Python.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        experiment: the directory of the run, if it is to leave anything behind.
        strategy: how towers are placed; one tower on the default device if None.

    Attributes:
        model, config: what was given.
        data: the training data and its position.
        datasets: everything that the model's `datasets` returned, by name.
        variables: the model's variables by name; `trainable` and `decayed` are the chosen ones among them.
        optimizer: the Keras optimizer that `train_step` uses.
        gradient_processors: functions from and to a list of (gradient, variable), applied in order before an update.

    Raises:
        ModelError, DataError, ConfigError: the model does not keep to the protocol.
    """

    repeats_data = True  # whether training data with an end begins anew there, or ends the training
    config: Config
    datasets: dict[str, tf.data.Dataset]

    def __init__(
        self,
        model: ModelProtocol,
        *,
        experiment: Experiment | str | Path | None = None,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        super().__init__(experiment=experiment)
        self.model = model
        self.config = model.config
        self.strategy = strategy if strategy is not None else tf.distribute.get_strategy()
        self.towers = self.strategy.num_replicas_in_sync
        check_divides(self.global_batch, self.towers, self.config["model.accumulate_steps"])
        self.gradient_processors = processors_from_config(self.config)
        # Kept here, since Keras has it per thread (towers are traced in threads of their own) and clears it below.
        self._policy = self.config["model.mixed_precision"] or keras.config.dtype_policy().name
        self.loss_scale = LossScale() if self._policy == "mixed_float16" else None
        seed = self.config["trainer.random_seed"]
        # Layer names count up per process; a run's variables must have the same names in every process.
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(seed)
        self._model_code = source_digest(self._model_source())  # before anyone edits what this process has imported
        self._files: set[str] = set()
        with noting_files(self._files):
            self.data = TrainingData(self.make_datasets, seed=seed, announce=self.log, repeat=self.repeats_data)
        self.datasets = self.data.datasets
        self.element_spec = self.data.element_spec
        keras.utils.set_random_seed(seed)
        self._store = VariableStore()
        parts = self.towers * self.config["model.accumulate_steps"]
        first = first_part(self.data.first_batch, parts)
        spec = self.element_spec if parts == 1 else tf.nest.map_structure(tf.type_spec_from_value, first)
        with building(self.towers, training=True), dtype_policy(self._policy):
            with self._store.creating(self.strategy, self.declare_variable):
                self._check_trainable(model.build(first, True))
            self._store.adopt(lambda inputs: self._check_trainable(model.build(inputs, True)), spec)
        with self.strategy.scope():
            self.variables = self._store.variables
            self.trainable = select(self._store.trainable, self.config, "model.trainable_variables")
            self.decayed = self._choose_decayed()
            self.create_optimizers()
        self.state.update(self.variables)
        self.state["data"] = self.data
        if self.loss_scale is not None:
            self.state.update(self.loss_scale.variables())
        self._separate_towers()
        self._steps: CompiledSteps | None = None
        self._evaluations: dict[str, Evaluation] = {}

    # -- to override --------------------------------------------------------------------------------------------------

    def create_optimizers(self) -> None:
        """Make `self.optimizer` (or several of your own) and register its variables in `state`."""
        self.optimizer = own_optimizer(make_optimizer(self.config))
        self.register_optimizer("optimizer", self.optimizer, self.trainable.values())

    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Do one iteration with one tower's batch; traced.

        By default: build, gradients of the loss and of the weight decay, processors, guarded update.

        Args:
            inputs: the tower's batch.

        Returns:
            scalar tensors by name.
        """
        variables = list(self.trainable.values())

        def compute(inputs: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
            with tf.GradientTape() as tape:
                net = self.build(inputs, True)
                outputs = scalars(net)
                outputs["loss_l2"] = self.weight_decay_loss()
                loss = tf.cast(outputs["loss"], tf.float32) + outputs["loss_l2"]
                if (of_layers := self._store.loss()) is not None:
                    outputs["loss_layers"] = of_layers
                    loss += of_layers
                outputs["loss_total"] = loss
            return outputs, self.gradients(tape, loss, variables)

        if self.config["model.jit_compile"] and not self.steps.is_watched:
            compute = tf.function(compute, autograph=False, jit_compile=True)
        outputs, gradients = over_micro_batches(compute, inputs, self.config["model.accumulate_steps"])
        self.apply_gradients(list(zip(gradients, variables, strict=True)), loss=outputs["loss_total"])
        outputs["learning_rate"] = tf.convert_to_tensor(self.optimizer.learning_rate)
        if self.loss_scale is not None:
            outputs["loss_scale"] = tf.convert_to_tensor(self.loss_scale.scale)
        return outputs

    def run_step(self) -> Mapping[str, Any] | None:
        """Do one compiled step. An override is called for every step, in Python, in place of the compiled call."""
        while not self.steps.run(1):
            pass  # a pass over the data ended, and the next one has begun
        return self.outputs

    # -- for train_step -----------------------------------------------------------------------------------------------

    def build(self, inputs: dict[str, Any], train_phase: bool) -> Mapping[str, Any]:
        """Build one tower, with the variables that all towers and modes share."""
        tower = building(self.towers, train_phase, self.tower_to_build())
        with tower, self._store.sharing(), dtype_policy(self._policy):
            net = check_net(self.model.build(inputs, train_phase))
        if train_phase and self._steps is not None:
            self._steps.note(net)
        return net

    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[Any]) -> list[Any]:
        """Gradients of a loss; under the policy ``mixed_float16`` it is scaled while they are computed.

        Args:
            tape: has recorded the loss.
            loss: a scalar.
            variables: with respect to which.
        """
        if self.loss_scale is None:
            return list(tape.gradient(loss, variables))
        scale = tf.cast(self.loss_scale.scale, loss.dtype)
        return self.loss_scale.unscaled(tape.gradient(loss, variables, output_gradients=scale))

    def weight_decay_loss(self) -> tf.Tensor:
        """``model.weight_decay.value`` times the sum of squares of the decaying variables, halved."""
        value = self.config["model.weight_decay.value"]
        if not value or not self.decayed:
            return tf.constant(0.0)
        return value * tf.add_n([tf.nn.l2_loss(variable) for variable in self.decayed.values()])

    def apply_gradients(
        self,
        gradients_and_variables: GradientsAndVariables,
        *,
        loss: tf.Tensor,
        optimizer: keras.optimizers.Optimizer | None = None,
    ) -> None:
        """Average gradients over the towers, process them, and update variables.

        With `check_finite` nothing is updated when the loss or a gradient is not finite in any tower.

        Args:
            gradients_and_variables: pairs; a variable whose gradient is None is left out.
            loss: what the gradients are of, a scalar.
            optimizer: `self.optimizer` if None.

        Raises:
            ModelError: no variable has a gradient.
        """
        pairs = [(gradient, variable) for gradient, variable in gradients_and_variables if gradient is not None]
        if not pairs:
            raise ModelError("the loss does not depend on any trainable variable")
        *gradients, loss = self.mean_over_towers([*(gradient for gradient, _ in pairs), loss])
        pairs = [(gradient, variable) for gradient, (_, variable) in zip(gradients, pairs, strict=True)]
        if self.record_gradient_norm:
            self.steps.add_output("gradient_norm", global_norm(pairs))
        for process in self.gradient_processors:
            pairs = process(pairs)
        pairs = [(gradient, self._store.keras_variable(variable)) for gradient, variable in pairs]
        self.steps.update(optimizer or self.optimizer, pairs, loss)

    def register_optimizer(
        self, name: str, optimizer: keras.optimizers.Optimizer, variables: Iterable[tf.Variable] | None = None
    ) -> None:
        """Have the variables of an optimizer saved as ``<name>/...``.

        Args:
            name: unique among the trainer's optimizers.
            optimizer: is built already if there are no `variables`.
            variables: those of the model that it is to be built for.
        """
        names = {id(variable): name for name, variable in self.variables.items()}
        trained = {names[id(variable)]: self._store.keras_variable(variable) for variable in variables or ()}
        if variables is not None:
            optimizer.build(list(trained.values()))
        for slot, variable in named_slots(optimizer, trained):
            self.state[f"{name}/{slot}"] = variable

    # -- the loop's part ----------------------------------------------------------------------------------------------

    @property
    def steps(self) -> CompiledSteps:
        """The compiled call of the present run."""
        if self._steps is None:
            self._steps = CompiledSteps(self)
        return self._steps

    @property
    def keras_layers(self) -> dict[str, keras.layers.Layer]:
        """The Keras layers that `build` makes or calls, by name."""
        return dict(self._store.layers)

    @property
    def model_variables(self) -> dict[str, Any]:
        """The model's variables by name."""
        return dict(self.variables)

    @property
    def is_compiled(self) -> bool:
        return not self.overrides_run_step

    @property
    def overrides_run_step(self) -> bool:
        """Whether each iteration is done in Python."""
        return type(self).run_step is not TowerTrainer.run_step

    def run_steps(self, n: int) -> int:
        if self.overrides_run_step:
            return super().run_steps(n)
        if self.callbacks.watching and self.steps.can_be_watched:
            return self.steps.run(n - 1) if n > 1 else self.steps.run(1, watched=True)
        return self.steps.run(n)

    def train(
        self,
        callbacks: Iterable[Callback] = (),
        *,
        steps_per_epoch: int | None = None,
        max_epoch: int | None = None,
        max_steps: int | None = None,
        resume: bool = True,
    ) -> None:
        """Train; see `Trainer.train`.

        Args:
            callbacks: everything that is to happen besides the iterations.
            steps_per_epoch: by default ``trainer.steps_per_epoch``, else the number of batches in the dataset, else the
                number of steps.
            max_epoch: the number of epochs.
            max_steps: the number of steps; by default ``model.num_steps`` if `max_epoch` is not given either.
            resume: go on from the experiment's newest checkpoint, if there is one.
        """
        if max_steps is None and max_epoch is None:
            max_steps = self.config["model.num_steps"]
        if steps_per_epoch is None:
            steps_per_epoch = self.config["trainer.steps_per_epoch"] or self.data.cardinality or max_steps
        self._adopt_optimizers()
        if self._steps is not None:
            self._steps.settle()
        self._steps = None  # traced callbacks belong to one list
        super().train(
            callbacks, steps_per_epoch=steps_per_epoch, max_epoch=max_epoch, max_steps=max_steps, resume=resume
        )

    def start_save(self) -> Callable[[], Path]:
        if self._steps is not None:
            self._steps.settle()
        offset, whole = self.data.offset, self.step_is_whole
        finish = super().start_save()

        def finish_and_note() -> Path:
            path = finish()
            if whole:
                self.data.saved_at(str(path / "data"), offset)
            return path

        return finish_and_note

    # -- beside training ----------------------------------------------------------------------------------------------

    def next_batch(self) -> dict[str, Any]:
        """Read one batch of training data, for a `run_step` of your own.

        Raises:
            StopTraining: there is no more data.
        """
        self.data.catch_up()
        for batch in self.data.iterator:
            self.data.count(1)
            return dict(batch)
        self.data.start_next_pass()
        return self.next_batch()

    def evaluate(self, dataset: str, batches: int = 0) -> dict[str, float] | None:
        """Average the model's scalars over a dataset, weighted by batch size, without training.

        Args:
            dataset: its name, such as "vld".
            batches: how many batches from the start; 0 for all.

        Returns:
            the scalars by name, or None if a stop was requested before the end.

        Raises:
            DataError: there is no such dataset, or it is empty.
        """
        if dataset not in self.datasets:
            raise DataError(f"datasets() gives no {dataset!r}; it gives {', '.join(self.datasets)}")
        evaluation = self._evaluations.get(dataset)
        if evaluation is None:
            evaluation = self._evaluations[dataset] = Evaluation(self, dataset)
        return evaluation.run(batches)

    def load_weights(self, path: str | Path) -> None:
        """Take over what matches from a checkpoint and print a table of what became of each variable."""
        with noting_files(self._files):
            report = load_weights(self.variables, path)
        self.log(f"weights from {path}\n{load_report_table(report)}")

    def make_datasets(self) -> dict[str, tf.data.Dataset]:
        """The model's datasets; the training batches hold `global_batch` examples for all towers."""
        return self.model.datasets()

    @property
    def global_batch(self) -> int:
        """Examples of one step, over all towers."""
        return int(self.config["model.batch_size"])

    def evaluate_batch(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        """The model's scalars on one batch, not training; traced."""
        return scalars(self.build(inputs, False), require_loss=False)

    @property
    def has_own_train_step(self) -> bool:
        """Whether a subclass has replaced what an iteration does."""
        return type(self).train_step is not TowerTrainer.train_step

    # -- what it says of itself ----------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        batch = self.global_batch
        mode = {"iterator": "exact", "replay": "exact, by reading again", "restart": "not exact"}[self.data.mode]
        return {
            "model": getattr(self.model, "name", type(self.model).__name__),
            **super().describe(),
            "towers": self.towers,
            "global batch": f"{batch} = {self.towers} tower{'s' * (self.towers > 1)} x {batch // self.towers}",
            "data on resume": f"{self.data.mode} ({mode}{'; ' + self.data.reason if self.data.reason else ''})",
            "learning rate": None if self.optimizer is None else f"{rate(self.optimizer):.6g}",
        }

    def describe_more(self) -> list[str]:
        return [variable_table(self.variables, self.trainable, self.decayed)]

    def resume_caveats(self) -> list[str]:
        found = [] if self.data.caveat is None else [self.data.caveat]
        shuffled = [name for name, dataset in self.datasets.items() if name != "trn" and reshuffles(dataset)]
        return found + [f"dataset {name!r} is shuffled anew each time it is read" for name in shuffled]

    def sources(self) -> list[Path]:
        source = self._model_source()
        return list(dict.fromkeys([*([source] if source else []), *super().sources()]))

    def _model_source(self) -> Path | None:
        return getattr(self.model, "source", None) or source_of(self.model)

    def provenance(self) -> dict[str, Any]:
        return {
            **super().provenance(),
            "towers": self.towers,
            "config": config_provenance(self.config),
            "model code": self._model_code,
            "data mode": self.data.mode,
        }

    def origin(self) -> dict[str, Any]:
        """See `TrainerServices.origin`; besides, the "model", the devices if there is a choice, and the "data"."""
        found = super().origin()
        if isinstance(self.model, Model):
            home = home_of(sys.modules.get(self.model.name))
            modules = {} if home is None else {self.model.name: str(home.resolve())}
            found.update(model=self.model.name, modules={**modules, **found["modules"]})
        files = self._files | named_files(self.datasets.values())
        data = {"files": describe_files(files), "pipeline": self.data.fingerprint()["pipeline"]}
        return {**found, "towers": getattr(self, "devices", None), "data": data}

    def _adopt_optimizers(self) -> None:
        """Build and save the optimizers that a subclass has as attributes, for a `train_step` of its own.

        Keras would make their variables when they are first used, which is after a checkpoint is restored.
        """
        known = {id(entry) for entry in self.state.values()}
        for name, optimizer in vars(self).items():
            if isinstance(optimizer, keras.optimizers.Optimizer) and id(optimizer.variables[0]) not in known:
                if not optimizer.built:
                    with self.strategy.scope():
                        optimizer.build([self._store.keras_variable(v) for v in self.trainable.values()])
                if id(optimizer) not in known:
                    self.register_optimizer(name, optimizer)

    def _check_trainable(self, net: Any) -> None:
        """Check that `train_step` can train what `build` returned, unless it is a subclass's own."""
        check_net(net)
        if not (self.has_own_train_step or self.overrides_run_step):
            scalars(net)

    def _choose_decayed(self) -> dict[str, tf.Variable]:
        if not self.config["model.weight_decay.value"]:
            return {}
        return select(self.trainable, self.config, "model.weight_decay")


class SimpleTrainer(TowerTrainer):
    """Trains a model on one device.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        experiment: the directory of the run, if it is to leave anything behind.
    """

    def __init__(self, model: ModelProtocol, *, experiment: Experiment | str | Path | None = None) -> None:
        super().__init__(model, experiment=experiment)


def own_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """An equal optimizer that belongs to the present strategy: one made before knows of a single device only."""
    if not tf.distribute.has_strategy():
        return optimizer
    return type(optimizer).from_config(optimizer.get_config())


def rate(optimizer: keras.optimizers.Optimizer) -> float:
    """The present learning rate."""
    return float(tf.convert_to_tensor(optimizer.learning_rate))  # a replicated variable is no number by itself
