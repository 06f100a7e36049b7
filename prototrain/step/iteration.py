"""What one iteration does on all towers, traced: hooks, the towers' steps, the mean over them, and the guarded update.

With one tower a step that is not finite fails ahead of its update; with several a conditional stands around the update.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.step.calls import Packing
from prototrain.step.guard import FailingGuard, all_finite
from prototrain.step.watched import join, pick
from prototrain.towers import components

if TYPE_CHECKING:
    from prototrain.trainers.tower import TowerTrainer


class Iteration:
    """One iteration of a tower trainer.

    Args:
        trainer: whose `train_step` is run, with the traced hooks of its callbacks around it.
    """

    can_fail = True  # whether a call may end with an error where it is not finite

    def __init__(self, trainer: TowerTrainer) -> None:
        self._trainer = trainer
        failing = self.can_fail and trainer.towers == 1 and trainer.loss_scale is None
        self._failing = FailingGuard() if failing and trainer.check_finite else None
        self._packing = Packing()
        self._tracing = threading.local()  # towers are traced in threads of their own
        self._watching: frozenset[str] | None = None  # while the watched step is traced: the tensors that are wanted

    def update(
        self, optimizer: keras.optimizers.Optimizer, pairs: list[tuple[Any, tf.Variable]], loss: tf.Tensor
    ) -> None:
        """Apply averaged gradients from inside a tower; with `check_finite` only if they and the loss are finite.

        Args:
            optimizer: applies them.
            pairs: gradients, the same in all towers, and their variables.
            loss: the mean over all towers.
        """
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        if self._trainer.towers > 1:
            # Keras would add up the towers' gradients once more.
            optimizer._all_reduce_sum_gradients = _as_they_are
        scale = self._trainer.loss_scale
        if not self._trainer.check_finite and scale is None:
            optimizer.apply(gradients, variables)
            return
        finite = all_finite([*gradients, loss])
        if self._failing is not None:
            with tf.control_dependencies([self._failing.require(finite, {"loss": loss})]):
                optimizer.apply(gradients, variables)
            return

        def apply_everywhere(
            strategy: tf.distribute.Strategy, finite: Any, gradients: list[Any], loss: Any
        ) -> tf.Tensor:
            def apply() -> tf.Tensor:
                strategy.run(lambda given: optimizer.apply(given, variables), args=(gradients,))
                return tf.constant(True)

            # The condition stands between the towers: an update inside one tower cannot be conditional.
            good = _first(strategy, finite)
            applied = tf.cond(good, apply, lambda: tf.constant(False))
            if scale is not None:
                applied |= scale.is_overflow(_first(strategy, loss))
                scale.adjust(good)
            return applied

        tower = tf.distribute.get_replica_context()
        self._tracing.guards.append(tower.merge_call(apply_everywhere, args=(finite, gradients, loss)))

    def _iterate(self, inputs: dict[str, Any], step: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """One iteration on all towers, with the callbacks' traced hooks around it.

        Returns:
            the outputs, averaged over the towers, and whether everything was finite.
        """
        trainer = self._trainer
        hooks = () if trainer.overrides_run_step else trainer.callbacks
        trainer.step_in_run = step
        changed = self._changed_without_guard() if trainer.check_finite else []
        # Every tower's own copy, since assigning through a replicated variable would combine what the towers have.
        copies = [copy for variable in changed for copy in components(variable)]
        if self._failing is not None:
            self._failing.begin(copies)
        before = [] if self._failing is not None else [_read(copy) for copy in copies]
        if hooks:
            trainer.callbacks.before_run()
        outputs, finite, seen = trainer.strategy.run(self._tower, args=(trainer.split_batch(inputs),))
        self._seen = {name: join(trainer.strategy.experimental_local_results(value)) for name, value in seen.items()}
        # Both are the same in all towers.
        outputs = {name: _first(trainer.strategy, value) for name, value in outputs.items()}
        finite = _first(trainer.strategy, finite)

        def put_back() -> tf.Tensor:
            for copy, value in zip(copies, before, strict=True):
                copy.assign(value)
            return tf.constant(False)

        def after_run() -> tf.Tensor:
            if hooks:
                trainer.callbacks.after_run(dict(outputs))
            return tf.constant(True)

        if not trainer.check_finite:
            return outputs, after_run()
        if self._failing is not None:
            with tf.control_dependencies(self._failing.checks(step.graph)):
                return outputs, after_run()
        if copies or any(callback.overrides("after_run") for callback in hooks):
            finite = tf.cond(finite, after_run, put_back)
        return outputs, finite

    def add_output(self, name: str, value: tf.Tensor) -> None:
        """Add a scalar to those that the tower's `train_step` returns; a number is added to a name that is taken."""
        added: dict[str, tf.Tensor] = self._tracing.added
        unique, number = name, 1
        while unique in added:
            number += 1
            unique = f"{name}_{number}"
        added[unique] = value

    @property
    def is_watched(self) -> bool:
        """Whether the step that is being traced is one of which more is seen than its scalars."""
        return self._watching is not None

    def note(self, net: Mapping[str, Any]) -> None:
        """Take note of what `build` returned, for a watched step."""
        if self._watching is not None:
            self._tracing.nets.append(net)

    def _tower(self, inputs: dict[str, Any]) -> tuple[dict[str, tf.Tensor], tf.Tensor, dict[str, tf.Tensor]]:
        guards: list[tf.Tensor] = []
        self._tracing.guards, self._tracing.nets, self._tracing.added = guards, [], {}
        with behind(inputs), tf.variable_creator_scope(self._warn_of_variable):
            outputs = self._trainer.train_step(inputs)
        if not isinstance(outputs, Mapping):
            raise ModelError(f"train_step() must return a dict of scalar tensors, not {type(outputs).__name__}")
        outputs = self._average({**outputs, **self._tracing.added})
        if self._trainer.check_finite and self._trainer.has_own_train_step and outputs:
            finite = all_finite(list(outputs.values()))
            if self._failing is None:
                guards.append(finite)
            else:
                self._failing.require(finite, outputs)
        seen = pick(self._watching or (), self._tracing.nets, inputs)
        return outputs, tf.reduce_all(tf.stack(guards)) if guards else tf.constant(True), seen

    def _average(self, outputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Average outputs and moving statistics over the towers, in one go; from inside a tower."""
        trainer = self._trainer
        if trainer.towers == 1:
            return outputs
        statistics = trainer.moving_statistics
        vectors = self._packing.pack(outputs)
        single, double, *means = trainer.mean_over_towers([*vectors, *map(tf.convert_to_tensor, statistics)])
        for variable, mean in zip(statistics, means, strict=True):
            variable.assign(mean)
        return self._packing.unstack((single, double))

    def _warn_of_variable(self, make: Callable[..., Any], **arguments: Any) -> Any:
        self._trainer.log(
            f"WARNING: train_step() created the variable {arguments.get('name')!r}, which no checkpoint holds; "
            "build the model with self.build(), and make optimizers attributes of the trainer"
        )
        with tf.init_scope():  # the call is traced once only, and cannot begin with making a variable
            return make(**arguments)

    def _changed_without_guard(self) -> list[Any]:
        """The variables that a step may have changed by the time it proves non-finite.

        A single guarded update leaves those that the forward pass itself assigns: batch statistics and seeds. A
        `train_step` of the user's own may update anything before it fails.
        """
        trainer = self._trainer
        if trainer.has_own_train_step:
            return [entry for entry in trainer.state.values() if isinstance(entry, (tf.Variable, keras.Variable))]
        changed: list[Any] = [variable for variable in trainer.variables.values() if not variable.trainable]
        changed += [variable for own in trainer.variables_of_towers.values() for variable in own.values()]
        if any(callback.overrides("before_run") for callback in trainer.callbacks):
            changed += [v for v in trainer.optimizer.variables if v is trainer.optimizer.learning_rate]
        return changed


def behind(inputs: dict[str, Any]) -> Any:
    """Let nothing begin before the batch is there: a failed read must not find that a seed or a rate has moved on."""
    return tf.control_dependencies(tf.nest.flatten(inputs, expand_composites=True))


def _first(strategy: tf.distribute.Strategy, value: Any) -> Any:
    return strategy.experimental_local_results(value)[0]


def _read(variable: tf.Variable) -> tf.Tensor:
    with tf.device(variable.device):
        return tf.identity(variable)


def _as_they_are(gradients_and_variables: Any) -> Any:
    return gradients_and_variables
