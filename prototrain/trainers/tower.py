"""Trainers that run each iteration as a TensorFlow graph on one or more towers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import keras
import numpy as np
import tensorflow as tf

from prototrain.checkpoint.state import variables_in
from prototrain.checkpoint.weights import averaged_weights, best_checkpoint, dump_weights
from prototrain.config.schema import SCHEMA, STEP_KEYS
from prototrain.data.batches import check_divides, describe_length
from prototrain.data.source import Share
from prototrain.errors import CheckpointError, ConfigError, ModelError
from prototrain.experiment import Experiment
from prototrain.experiment.facts import Facts
from prototrain.gradient_processors import CheckGradient, SummaryGradient
from prototrain.model.built import BuiltModel, datasets_of
from prototrain.model.loading import check_model
from prototrain.model.net import check_names, check_net, loss_weight, scalars
from prototrain.model.placement import Placement
from prototrain.model.variables import layer_table
from prototrain.optimizers import make_optimizer, processors_from_config
from prototrain.step import update
from prototrain.step.calls import StepCalls
from prototrain.step.loop import CompiledCalls, Iteration
from prototrain.step.nonfinite import LossScale
from prototrain.step.trace import tower_trace
from prototrain.step.update import BatchGradients, Pairs, accumulate_micro_batches, scale_for_towers
from prototrain.step.variables import StopVariable, is_scratch
from prototrain.step.xla_loop import XlaLoop
from prototrain.system.terminal import announcing, shorten_list
from prototrain.towers import choose_devices, components, describe_devices, used_devices
from prototrain.trainers.base import Trainer
from prototrain.trainers.optimization import (
    UNSET_RATE,
    RegisteredOptimizers,
    check_optimizer,
    check_rate,
    decay_losses,
    describe_optimizer,
    recreate_optimizer,
)
from prototrain.trainers.xla_choice import XlaChoice

if TYPE_CHECKING:
    from prototrain.checkpoint.weights import Names, Source
    from prototrain.config import Config
    from prototrain.model import ModelProtocol


_READ_LATER = ("model.lr_schedule.", "model.num_", "model.weights_load_path")
_READ_AT_START = [key for key in SCHEMA if key.startswith("model.") and not key.startswith(_READ_LATER)]
_READ_AT_START += [f"trainer.{name}" for name in ("data_position", "limit_batches", "overfit_batches", "random_seed")]
"""Config keys that a trainer reads only when it is made."""


class TowerTrainer(Trainer):
    """Builds a model once per tower and trains it with many steps per compiled call.

    Override `train_step` to change the traced computation for one tower's batch; steps are still compiled. Override
    `run_step` to run each iteration in Python.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        experiment: the experiment directory, or its path. Without one the trainer writes no files.
        placement: the towers; one tower on the default device if None.

    Attributes:
        model, config: the model and its config.
        built: the model on its towers, see `BuiltModel`.
        placement: the towers; `strategy` is its TensorFlow strategy, `towers` the number of towers.
        data: the training data and its position.
        datasets: the datasets of the model, by name.
        variables: the model's variables by name; `trainable` and `decayed` are the subsets that are trained and
            decayed.
        optimizer: the Keras optimizer that `train_step` uses.
        gradient_processors: functions from a list of (gradient, variable) to such a list, applied in order before an
            update.

    Raises:
        ModelError, DataError, ConfigError: the model breaks the model protocol.
    """

    takes_towers = False  # whether the constructor has an argument `towers`
    measures_xla = True  # whether the trainer can time XLA, for ``model.jit_compile = "auto"``
    repeats_data = True  # whether training data repeats, or its end ends the training
    continues_from_trained = False  # whether a new trainer may continue from weights that an earlier one trained
    share = Share()  # this worker's share of the data
    devices: list[str] | None = None  # names of the towers' devices, if the constructor takes them
    config: Config
    datasets: Mapping[str, tf.data.Dataset]
    _calls: StepCalls | None = None
    _scaling: Any = None  # a gradient processor that the trainer has added by itself
    _takes_two_gradients = False  # whether a tape may be asked for more than one gradient
    _check_optimizer = staticmethod(check_optimizer)

    def __init__(
        self,
        model: ModelProtocol,
        *,
        experiment: Experiment | str | Path | None = None,
        placement: Placement | None = None,
    ) -> None:
        check_model(model)
        super().__init__(experiment=experiment)
        self.model = model
        self.config = model.config
        self.placement = Placement() if placement is None else placement
        self.strategy, self.towers = self.placement.strategy, self.placement.towers
        check_divides(self.global_batch, self.towers, self.config["model.accumulate_steps"])
        self.gradient_processors = processors_from_config(self.config)
        self.built = BuiltModel(
            model,
            self.placement,
            datasets=self.make_datasets,
            repeats_data=self.repeats_data,
            share=self.share,
            check_data=self._check_data,
            check=self._check_net,
            stop=self.stop,
            counter=self.counter,
            log=self.log,
        )
        self.data, self.datasets = self.built.data, MappingProxyType(self.built.datasets)  # training reads `data`
        self.config.batches_per_epoch = self.config["trainer.steps_per_epoch"] or self.data.cardinality
        self.element_spec, self.model_source = self.built.element_spec, self.built.source
        self.variables, self.trainable, self.decayed = self.built.variables, self.built.trainable, self.built.decayed
        self.loss_scale = LossScale() if self.built.policy == "mixed_float16" else None
        self._optimizers = RegisteredOptimizers(self)
        with self.strategy.scope():
            self.create_optimizers()
        self.state.update(self.variables)
        self.state["data"] = self.data
        if self.loss_scale is not None:
            self.state.update(self.loss_scale.variables())
        self.placement.attach(self.variables, self.built.layers)
        self._xla = XlaChoice(self.config["model.jit_compile"], self.log)
        kind = type(self).__name__
        if self._xla.is_measured and not self.measures_xla:
            raise ConfigError(f'model.jit_compile: {kind} cannot time its steps for "auto"; use true or false')
        if self._xla.chosen == "loop" and not (self.towers == 1 and self.measures_xla and self.is_compiled):
            raise ConfigError(f'model.jit_compile: "loop" needs one tower and a compiled step, not {kind}; use true')
        self._stop_variable = StopVariable()
        self._may_undo = True
        self._notes = update.GradientNotes()
        self._has_applied = False  # whether a step has called `apply_gradients`
        for group in STEP_KEYS:  # the step reads them again, unless a subclass replaces it
            self.config.mark_read(group, is_read=group == "model.mixed_precision" and self.loss_scale is None)
        self._forget_calls()
        self._config_at_start = self._config_now()

    def _config_now(self) -> dict[str, Any]:
        """Return the config values that this trainer reads when it is made. This does not count as reading them."""
        return {key: self.config.data.get(key) for key in _READ_AT_START}

    def create_optimizers(self) -> None:
        """Create `self.optimizer` and register its variables in `state`. Override this to create other optimizers."""
        made = make_optimizer(self.config, without_schedule=UNSET_RATE)
        # An optimizer that was created outside of the strategy has its variables on a single device.
        self.optimizer = recreate_optimizer(made) if tf.distribute.has_strategy() else made
        self.register_optimizer("optimizer", self.optimizer, self.trainable.values())

    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Run one iteration on one tower's batch. TensorFlow traces this method.

        The default builds the model, computes the gradients of the loss, the weight decay and the layers' losses,
        applies the gradient processors, and updates the variables.

        Args:
            inputs: the tower's batch.

        Returns:
            scalar tensors by name.
        """
        trace = tower_trace()
        self.config.mark_read("model.jit_compile")
        outputs = self._update_from_gradients(
            self._compute_gradients(inputs, self._xla.chosen is True and not (trace is not None and trace.is_watched))
        )
        outputs["learning_rate"] = tf.convert_to_tensor(self.optimizer.learning_rate)
        return outputs

    def _update_from_gradients(self, found: BatchGradients) -> dict[str, tf.Tensor]:
        """Apply the gradients of one tower's batch and return its scalars. Traced."""
        outputs, gradients = scale_for_towers(found, self.placement)
        total = outputs.get("loss_total", outputs["loss"])
        pairs = list(zip(gradients, self.trainable.values(), strict=True))
        self.apply_gradients(pairs, loss=tf.cast(total, tf.float32))
        return outputs

    def _compute_gradients(self, inputs: dict[str, Any], with_xla: bool) -> BatchGradients:
        """Compute the forward pass and the gradients for one tower's batch. Traced."""
        variables = list(self.trainable.values())

        def compute(inputs: dict[str, Any]) -> BatchGradients:
            # A persistent tape makes the step of an LSTM a quarter longer.
            with tf.GradientTape(persistent=self._takes_two_gradients) as tape:
                net = self.build(inputs, True)
                outputs, weight = scalars(net), loss_weight(net)
                loss = tf.cast(outputs["loss"], tf.float32)
                added = self._added_losses()
                total = tf.add_n([loss, *added.values()])
                sum_of_added = tf.add_n(list(added.values())) if added else None
            if weight is None or not added:
                return BatchGradients(outputs, self.gradients(tape, total, variables), weight, added)
            of_loss, of_added = (self.gradients(tape, value, variables) for value in (loss, sum_of_added))
            return BatchGradients(outputs, of_loss, weight, added, of_added)

        if with_xla:
            compute = tf.function(compute, autograph=False, jit_compile=True)
        return accumulate_micro_batches(compute, inputs, self.config["model.accumulate_steps"])

    def _load_first_weights(self) -> None:
        if (path := self.config["model.weights_load_path"]) is not None:
            self.load_weights(path)

    def _prepare_step(self) -> None:
        """Time XLA for ``model.jit_compile = "auto"``, unless an earlier part of the run did so."""
        self._check_untrained()
        if self.loss_scale is not None and any(isinstance(one, CheckGradient) for one in self.gradient_processors):
            raise ConfigError("CheckGradient would fail whenever the loss scale overflows; use StopOnNaN")
        if not self.is_compiled or self.has_own_train_step:
            self._xla.turn_off(f"{type(self).__name__} has its own step")
        if self._xla.is_measured or self._xla.chosen == "loop":
            self.config.mark_read("model.jit_compile")

        def step(with_xla: bool) -> Callable[[Any], list[Any]]:
            def one_tower(inputs: dict[str, Any]) -> Any:
                return [self._update_from_gradients(self._compute_gradients(inputs, with_xla))["loss"]]

            return lambda batch: self.strategy.experimental_local_results(self.placement.run(one_tower, batch))[0]

        # "loop" is slow if callbacks run in every step.
        with_loop = self.towers == 1 and not (self.callbacks.watched_names or self.callbacks.each_step)
        with_loop = with_loop and not (self.data.block or self.data.total) and self.data.why_no_blocks() is None
        begin, variables = self.times.clock(), variables_in(self.state).values()
        self._xla.measure(step, self.data.first_batch, with_loop=with_loop, variables=variables)
        self.times.tracing += self.times.clock() - begin
        self._read_blocks()

    def _check_untrained(self) -> None:
        """Raise a ModelError if a fresh run would begin with weights that an earlier trainer has trained."""
        trained = self.built.layers.trained
        if trained and not self.global_step and not self.continues_from_trained:
            raise ModelError(
                f"an earlier trainer of this process has trained {shorten_list(trained)}, so this would not be a "
                "fresh run; make the layers in build(), or a new model for each run (to continue from the trained "
                "weights, call train() of the same trainer; to start from others, pass them to load_weights())"
            )

    def _read_blocks(self) -> None:
        """Read the data in blocks, if XLA compiles whole calls."""
        if self._xla.chosen == "loop" and not self.data.block:
            self.data.use_blocks()

    def run_step(self) -> Mapping[str, Any] | None:
        """Run one compiled step. An override runs in Python, once per step."""
        while not self._run_compiled(1):
            pass  # a pass over the data has ended, and the next one begins
        return self.outputs

    def make_datasets(self) -> dict[str, tf.data.Dataset]:
        """Return the model's datasets. A training batch holds `global_batch` examples, for all towers together."""
        return datasets_of(self.model, self.share)

    @property
    def global_batch(self) -> int:
        """The number of examples in one step, over all towers."""
        return int(self.config["model.batch_size"])

    @classmethod
    def prepare(cls, timeout: float | None = None) -> None:
        """Prepare the process before TensorFlow starts. The command line calls this before it imports the model."""

    @classmethod
    def report_failure(cls, error: BaseException) -> None:
        """Report the error that ends this process to the other processes, if any. The command line calls this."""

    @classmethod
    def would_be_chief(cls) -> bool:
        """Return whether a trainer in this process would be the chief."""
        return True

    def build(self, inputs: dict[str, Any], train_phase: bool) -> Mapping[str, Any]:
        """Build the model on one tower. All towers and modes share its variables.

        If the model returns a "loss_weight" for training, it weights the towers when the scalars of `train_step` and
        the gradients of the next `apply_gradients` are averaged.

        Args:
            inputs: the tower's batch.
            train_phase: whether the model is built for training.

        Returns:
            tensors by name.
        """
        net = self.built.build(inputs, train_phase)
        trace = tower_trace()
        if train_phase and trace is not None:
            if trace.is_watched:
                trace.nets.append(net)
            trace.weight, trace.has_no_weight = loss_weight(net), None
        return net

    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[Any]) -> list[Any]:
        """Compute the gradients of a loss. The policy ``mixed_float16`` scales the loss and divides the gradients.

        Args:
            tape: the tape that recorded the loss.
            loss: a scalar.
            variables: the variables to differentiate with respect to.

        Returns:
            a gradient for each variable, or None where the loss does not depend on it.
        """
        self.config.mark_read("model.mixed_precision")
        if self.loss_scale is None:
            return list(tape.gradient(loss, variables))
        return self.loss_scale.gradients(tape, loss, variables)

    def weight_decay_loss(self) -> tf.Tensor:
        """Compute the weight decay that is added to the loss, a float32 scalar.

        This is ``model.weight_decay.value`` times half the sum of squares of the decayed variables, plus
        ``model.weight_decay.l1`` times the sum of their absolute values.
        """
        self.config.mark_read("model.weight_decay")
        return tf.add_n([tf.constant(0.0), *decay_losses(self.config, self.decayed.values()).values()])

    def _added_losses(self) -> dict[str, tf.Tensor]:
        """Return the terms that are added to the model's loss, by name."""
        self.config.mark_read("model.weight_decay")
        found = decay_losses(self.config, self.decayed.values())
        if type(self).weight_decay_loss is not TowerTrainer.weight_decay_loss:  # a subclass defines another decay
            found["loss_l2"] = self.weight_decay_loss() - found.get("loss_l1", 0.0)
        if (of_layers := self.built.layers.loss()) is not None:
            found["loss_layers"] = of_layers
        return found

    def apply_gradients(
        self,
        gradients_and_variables: Pairs,
        *,
        loss: tf.Tensor,
        optimizer: keras.optimizers.Optimizer | None = None,
        processors: Sequence[Callable[[Pairs], Pairs]] = (),
        when: tf.Tensor | bool | None = None,
    ) -> None:
        """Average gradients over the towers, process them, and update the variables.

        A "loss_weight" of the model weights the average. Rows of a sparse gradient with the same index are summed
        first. With `check_finite`, no variable is updated if the loss, a gradient or the learning rate is not finite
        in any tower.

        Args:
            gradients_and_variables: pairs; a variable whose gradient is None is left out.
            loss: the scalar loss that the gradients belong to.
            optimizer: the optimizer to update with; `self.optimizer` if None.
            processors: gradient processors of this update, applied after `gradient_processors`.
            when: a scalar bool, whether to update in this step; an error if it differs between towers. If it is false,
                the optimizer's `iterations` do not change either. None updates in every step.

        Raises:
            ModelError: the list is empty, no variable has a gradient, or the call is inside a `tf.cond` or a loop.
        """
        self.config.mark_read("model.clip_gradients")
        self._has_applied = True
        update.apply_gradients(
            gradients_and_variables,
            loss,
            self.optimizer if optimizer is None else optimizer,
            placement=self.placement,
            processors=[*self.gradient_processors, *processors, self.built.with_keras_variables],
            record_norm=self.record_gradient_norm,
            notes=self._notes,
            when=when,
        )

    def register_optimizer(
        self, name: str, optimizer: keras.optimizers.Optimizer, variables: Iterable[tf.Variable] | None = None
    ) -> None:
        """Save the variables of an optimizer in checkpoints, as ``<name>/...``.

        Args:
            name: a name that is unique among the trainer's optimizers.
            optimizer: the optimizer; it must be built if `variables` is None.
            variables: the model's variables to build the optimizer for.

        Raises:
            ModelError: a variable does not belong to the model.
            ConfigError: the optimizer accumulates gradients over steps, and there are several towers; or it has an
                argument that only Keras's `fit` supports.
        """
        self._optimizers.register(name, optimizer, variables)

    @property
    def calls(self) -> StepCalls:
        """The compiled calls of the current run."""
        if self._calls is None:
            self._calls = self.make_calls()
        return self._calls

    def _forget_calls(self) -> None:
        """Trace the step again, for the callbacks of the next run."""
        self._calls = None
        self._is_traced = False

    def _run_compiled(self, n: int) -> int:
        """Run up to `n` steps in one compiled call; return 0 at the end of a pass over the data, or at a stop."""
        if not self.data.catch_up(self.should_stop):
            return 0
        calls, start = self.calls, self.counter.step
        if self.is_compiled and self.callbacks.watching and calls.may_be_watched:  # the last step runs separately
            result = calls.run_watched(start) if n == 1 else calls.run(start, n - 1)
        else:
            result = calls.run(start, n)
        if result.is_undone:  # repeat the call, and stop right at the step that is not finite
            self.log(f"the loss or a gradient is not finite in a step after {start}; repeating the steps up to it")
            self.data.count(0, reads_ahead=not self.data.block)  # a block is kept
            self._may_undo = False
            self._forget_calls()
            return 0
        failed = result.error is not None
        # A failed call has read at least one more batch than it trained on.
        self.data.count(result.steps, reads_ahead=failed)
        # Within a user's `run_step` the step may not be complete yet.
        is_whole = result.is_whole if failed else self.is_compiled
        # The outputs of a failed call may be those of the failed step.
        last = {name: row[-1] for name, row in result.scalars.items() if row} if failed else result.outputs
        self._set_step(self.counter.step + result.steps, outputs=last or None, is_whole=is_whole)
        self.watched, self.summary_events = result.watched, result.summary_events
        self.times.add_call(tracing=result.tracing, waiting=result.waiting)
        if self.is_compiled and result.steps:
            self.callbacks.after_steps(result.scalars)
        if result.error is not None:
            raise result.error from result.error.__cause__
        if not self._is_traced and result.steps:
            self._is_traced = True
            self._log_gradient_notes()
            self._warn_of_unsaved_variables(calls.graph)
            self._check_copies()
            if calls.has_summaries and not self.callbacks.watchers:
                self.run.log_once(
                    "WARNING: the step calls tf.summary, but no callback records it; add Summaries() to the callbacks"
                )
        if result.data_ended and not result.steps:
            self.data.start_next_pass()
        return result.steps

    def make_calls(self) -> StepCalls:
        """Create the compiled calls for the callbacks of the current run."""
        if self._xla.chosen == "loop":
            return XlaLoop(Iteration(self, may_fail=False, may_undo=self._may_undo, may_be_watched=False))
        return CompiledCalls(Iteration(self, may_undo=self._may_undo), self._stop_variable)

    @property
    def is_compiled(self) -> bool:
        return type(self).run_step is TowerTrainer.run_step

    @property
    def has_own_train_step(self) -> bool:
        """Whether a subclass overrides `train_step`."""
        return type(self).train_step is not TowerTrainer.train_step

    def run_steps(self, n: int) -> int:
        self._check_settings()
        if not self.is_compiled:
            done = super().run_steps(n)
            self._log_gradient_notes()
            return done
        with announcing("tracing and compiling the step", self.log) if self._calls is None else nullcontext():
            return self._run_compiled(n)

    def _warn_of_unused_keys(self) -> None:
        """Warn about config keys and gradient processors that are set but not used by the step."""
        for key, why in self.config.without_effect().items():
            self.run.log_once(f"WARNING: {key} has no effect: {why}")
        ignored = [one for one in self.gradient_processors if one is not self._scaling]
        records = self._has_applied and self.is_compiled  # values can be recorded in compiled steps only
        has_no_norm = self.record_gradient_norm and not records and "gradient_norm" not in self.outputs
        if self._has_applied:
            ignored = [one for one in ignored if isinstance(one, SummaryGradient) and not records]
        names = [type(one).__name__ for one in ignored] + ["GradientNorm"] * has_no_norm
        if names:
            why = "run_step() runs in Python" if self._has_applied else "the step does not call self.apply_gradients()"
            self.run.log_once(f"WARNING: no effect of {', '.join(names)}: {why}")

    def _check_settings(self) -> None:
        """Check the learning rate before the first step, and in each epoch which variables are trained."""
        if not self.local_step:
            self._check_trainable()
        if self.counter.step == self.run.began_at:
            unused = check_rate(self.config, self.optimizer, self.callbacks, is_used=not self.has_own_train_step)
            if unused is not None and self.is_chief:
                self.run.log_once(unused)

    def _log_gradient_notes(self) -> None:
        for line in self._notes.lines(self.gradient_processors):
            self.run.log_once(line)
        if self.is_compiled:  # a step in Python may still use some keys later
            self._warn_of_unused_keys()

    def _warn_of_unsaved_variables(self, graph: Any) -> None:
        """Warn about variables that the traced step uses and the state lacks."""
        # Handles, since TensorFlow may wrap a variable once more for each use.
        held = {id(copy.handle) for variable in variables_in(self.state).values() for copy in components(variable)}
        used = [] if graph is None else [variable for variable in graph.variables if not is_scratch(variable)]
        unsaved = sorted({variable.name.partition(":")[0] for variable in used if id(variable.handle) not in held})
        if unsaved:
            self.run.log_once(
                f"WARNING: the step uses the variables {shorten_list(unsaved)}, which no checkpoint holds: a resumed "
                "run would start with new ones; create layers in build(), pass optimizers to register_optimizer(), or "
                "put the variables into trainer.state"
            )

    def _check_copies(self) -> None:
        """Raise a ModelError if the towers have different copies of a variable that a step assigns."""
        if self.towers == 1:
            return
        for name, variable in variables_in(self.state).items():
            first, *others = components(variable)
            # Each step averages what the default `train_step` assigns, but no counters. A sum has a part on each tower.
            is_averaged = first.dtype.is_floating and not self.has_own_train_step
            if is_averaged or first.synchronization == tf.VariableSynchronization.ON_READ:
                continue
            if not all(np.array_equal(first.numpy(), one.numpy(), equal_nan=True) for one in others):
                raise ModelError(
                    f"the towers have different values of {name}, to which the step assigns: average it first, "
                    'with tf.distribute.get_replica_context().all_reduce("mean", value), or give the variable an '
                    "aggregation"
                )

    def should_stop(self) -> bool:
        """Return whether a stop must end the reading of data now; not in steps in Python, which would read again."""
        return self.stop.signum is not None and self.is_compiled

    def _epoch_length(self, *, is_required: bool) -> int | None:
        return super()._epoch_length(is_required=is_required) or self.data.cardinality

    @contextmanager
    def _around_run(self) -> Iterator[None]:
        now = self._config_now()
        if changed := [key for key, value in self._config_at_start.items() if now[key] != value]:
            raise ConfigError(f"{changed[0]} was changed after the trainer was made; make a new trainer")
        self.built.check_trainable()
        self.built.layers.note_names()
        self._forget_calls()  # the calls contain the callbacks of one run
        self.data.allow_changes = self.allow_changed_data
        try:
            # A step in Python needs no stop variable, since `run_steps` checks for a stop after each step.
            with self.stop.notifying(self._stop_variable.set) if self.is_compiled else nullcontext():
                yield
            self._check_trainable()
            self._check_copies()
            if not self.is_compiled and self.global_step > self.run.began_at:
                self._warn_of_unused_keys()
        finally:
            if self.global_step:
                self.built.layers.mark_trained(self.trainable)

    def _check_trainable(self) -> None:
        """Raise a ModelError if `trainable` of a layer has changed since the trainer was made."""
        if self.is_compiled and not self.has_own_train_step:  # such a step may change `trainable` while it runs
            self.built.check_trainable()

    def next_batch(self) -> dict[str, Any]:
        """Read one batch of training data, for use in an overridden `run_step`.

        Raises:
            StopTraining: the data has ended.
        """
        return self.data.next_batch()

    def evaluate(self, dataset: str, batches: int = 0) -> dict[str, float] | None:
        """Average the model's scalars over a dataset; see `BuiltModel.evaluate`."""
        return self.built.evaluate(dataset, batches)

    def _rehearse(self, dataset: str, batches: int = 0) -> None:
        if type(self).evaluate is TowerTrainer.evaluate:
            self.built.evaluation(dataset).rehearse(self.stop, batches, step=self.counter.step)

    def load_weights(
        self,
        source: Source | Sequence[Source] | None,
        *,
        prefix: str | None = None,
        ignore: Iterable[str] = (),
        names: Names | None = None,
        mismatch: Literal["skip", "error"] = "skip",
        checkpoint: Literal["newest", "best"] = "newest",
    ) -> None:
        """Load the weights that match by name and shape, and print a table with the outcome for each variable.

        The best checkpoint provides the weights that were evaluated: the moving averages if
        `ExponentialMovingAverage` was among the callbacks. Moving averages of this trainer restart from the loaded
        weights.

        Args:
            source: a dict of arrays, a ``.npz``, a Keras ``.weights.h5``, an experiment, one of its checkpoints, or the
                prefix of a TensorFlow 1 or 2 checkpoint; or a list of these, which are loaded in order. None loads
                nothing.
            prefix: put before every name of the source, with a slash.
            ignore: regular expressions for whole names of the model's variables, which keep their values.
            names: a dict or a function from a name in the source to the name in the model; None skips the name.
            mismatch: "error" to raise an error if a shape differs, "skip" to keep the variable's value.
            checkpoint: which checkpoint of an experiment to load: "newest", or "best" for the one that `MinSaver` or
                `MaxSaver` kept.

        Raises:
            CheckpointError: the source cannot be read, is damaged, or matches no variable; no variable has changed.
        """
        if checkpoint not in ("newest", "best"):
            raise CheckpointError(f"load_weights: checkpoint must be 'newest' or 'best', not {checkpoint!r}")
        options: dict[str, Any] = {"prefix": prefix, "ignore": ignore, "names": names, "mismatch": mismatch}
        if checkpoint == "best":  # the moving averages were evaluated, if there are any
            options["prepare"] = lambda saved: {**saved, **averaged_weights(saved)}
        for one in source if isinstance(source, list | tuple) else () if source is None else (source,):
            if checkpoint == "best":
                one = best_checkpoint(one)
            where = "" if isinstance(one, Mapping) else f" from {one}"
            with announcing(f"loading weights{where}", self.log):
                table = self.built.load_weights(one, **options)
            self.log(table)
        for name, average in averaged_weights(self.state).items():  # restart from the loaded weights
            average.assign(self.variables[name])

    def dump_weights(self, path: str | Path) -> None:
        """Write all variables of the model to a ``.npz`` by name. `load_weights` and `numpy.load` can read it.

        Raises:
            CheckpointError: the path does not end with ``.npz``, or the file cannot be written.
        """
        dump_weights(self.variables, path)

    @property
    def model_variables(self) -> dict[str, Any]:
        return dict(self.variables)

    @property
    def trained_variables(self) -> dict[str, Any]:
        return {name: variable for name, variable in self.variables.items() if name in self.trainable}

    @property
    def keras_layers(self) -> dict[str, keras.layers.Layer]:
        """The Keras layers that `build` creates or calls, by name."""
        return self.built.layers.layers

    @contextmanager
    def _around_restore(self, facts: Mapping[str, Any]) -> Iterator[None]:
        self._xla.recall(facts)
        self._read_blocks()
        with self._optimizers.around_restore(facts.get("optimizers") or {}):
            yield
        self.built.refresh()

    def describe(self) -> dict[str, Any]:
        batch = self.global_batch
        devices = self.devices or used_devices(self.trainable.values()) or choose_devices(None)[:1]
        return {
            "model": self.built.name,
            **super().describe(),
            "towers": self.towers,
            "devices": describe_devices(devices),
            "global batch": f"{batch} = {self.towers} tower{'s' * (self.towers > 1)} x {batch // self.towers}",
            "data position": self.data.describe(),
            "data": ", ".join(f"{name} {describe_length(one)}" for name, one in self.datasets.items()),
            "precision": self.built.policy + (", with XLA" if self._xla.chosen is True else ""),
            "optimizer": None if self.optimizer is None else describe_optimizer(self.config, self.optimizer),
        }

    def _describe_layers(self) -> str | None:
        return layer_table(self.variables, self.trainable)

    def _after_restore(self) -> list[str]:
        self.data.catch_up(lambda: self.stop.signum is not None)  # may find that the data does not repeat itself
        return [f"data: {self.data.mode}", *([] if self.data.caveat is None else [self.data.caveat])]

    def _facts(self) -> Facts:
        found = super()._facts()
        found["sources"] |= self.built.facts()["sources"]  # as they were when the trainer was made
        return {**found, "towers": self.towers, "optimizers": self._optimizers.facts(), **self._xla.recorded()}

    def _origin(self) -> dict[str, Any]:
        found, model = super()._origin(), self.built.origin()
        modules = {**model.get("modules", {}), **found["modules"]}
        return {**found, **model, "modules": modules, "towers": self.devices}

    def _check_data(self, built: BuiltModel) -> None:
        """Check, before the model is built, that the batches have ``model.batch_size`` examples."""
        expected = self.global_batch * self.placement.parts // self.placement.towers
        built.data.require_batch_size(expected, self.config["model.batch_size"])

    def _check_net(self, net: Any) -> None:
        """Check the result of `build`; the scalars are only checked for the default `train_step`."""
        check_net(net)
        has_own = type(self).build is not TowerTrainer.build or type(self).gradients is not TowerTrainer.gradients
        self._takes_two_gradients = has_own or loss_weight(net) is not None
        if self.is_compiled and not self.has_own_train_step:
            scalars(net)
            check_names(net)


class SimpleTrainer(TowerTrainer):
    """Trains a model on one device.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        experiment: the experiment directory, or its path. Without one the trainer writes no files.
    """
