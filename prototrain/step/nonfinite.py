"""Policies for non-finite losses, gradients and learning rates, and loss scaling for float16.

    guard            used                                       a step that is not finite
    Guard            without `StopOnNaN`                        is applied
    AssertFinite     by default                                 fails before its update
    UndoCalls        for small models on one tower              undoes its call, which another guard repeats
    SkipNonFinite    with loss scaling, or if a failed step     is skipped
                     would leave other towers waiting

A traced iteration calls its guard three times: `begin` first, `apply` for each update from inside a tower, and `finish`
after all towers. Variables that a step changes before it is known to be finite, such as batch statistics and seeds, are
copied in `begin` and restored after a non-finite step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.gradient_processors import divide
from prototrain.optimizers import keeps_non_finite, update_if, update_with
from prototrain.step.variables import scratch_variable

if TYPE_CHECKING:
    from prototrain.step.trace import TowerTrace

_INITIAL = 2.0**15
_GROWTH_STEPS = 2000
_MARK = "prototrain: a value is not finite"
_SHOWN = re.compile(re.escape(_MARK) + r"\] \[(\d+)\] \[([^\]]*)\]")


def all_finite(tensors: Sequence[Any]) -> tf.Tensor:
    """Return whether all tensors are finite, a bool scalar; traced or eager."""
    # Their sum is not finite if any part is not, and testing it costs less than many tests.
    dense = [
        tensor.values if isinstance(tensor, tf.IndexedSlices) else tf.convert_to_tensor(tensor) for tensor in tensors
    ]
    floats = [tf.cast(tensor, tf.float32) for tensor in dense if tensor.dtype.is_floating]
    sums = [tf.reduce_sum(tensor) if tensor.shape.rank else tensor for tensor in floats]
    return tf.math.is_finite(tf.add_n(sums)) if sums else tf.constant(True)


@dataclass(frozen=True)
class Update:
    """An update of variables, from inside a tower."""

    optimizer: Any  # a Keras optimizer, or an object with its `learning_rate` and `apply_gradients`
    gradients: list[Any]  # the same in all towers
    variables: list[Any]
    loss: tf.Tensor  # the mean over all towers, a scalar
    when: tf.Tensor | None = None  # whether to update, a scalar bool that is the same in all towers; None for always


class Guard:
    """A guard without checks, and the base class of all guards."""

    reports_non_finite = False  # whether an iteration may report that it was not finite, which ends the call
    undoes_calls = False  # whether a call that was not finite is undone by `restore`, and its steps must be repeated

    def __init__(self) -> None:
        self._copies: dict[int, tuple[tf.Variable, tf.Variable]] = {}  # variables and copies of them

    def begin_call(self, variables: Sequence[tf.Variable]) -> None:
        """Start a call; traced. `variables` are all that its steps may change."""

    def end_call(self, finite: tf.Tensor | bool = True) -> tf.Tensor:
        """Return whether the updates of a call are kept, a bool tensor; traced or eager."""
        return tf.convert_to_tensor(finite)

    def begin(self, variables: Sequence[tf.Variable], step: tf.Tensor) -> None:
        """Start a step; traced. `variables` are those that the step may change before it is known to be finite."""

    def apply(self, trace: TowerTrace, update: Update) -> None:
        """Update variables from inside a tower; traced."""
        update_if(update.when, update.optimizer, update.gradients, update.variables)

    def finish(
        self, outputs: Mapping[str, tf.Tensor], finite: tf.Tensor, after_run: Callable[[], None] | None
    ) -> tf.Tensor:
        """Call `after_run`, or restore changed variables, after all towers; traced.

        Returns:
            a bool tensor: whether the step is complete, that is, all updates (`finite`) and the `outputs` are finite.
        """
        if after_run is not None:
            after_run()
        return tf.constant(True)

    def failed_with(self, error: tf.errors.OpError) -> Mapping[str, float] | None:
        """Return the values to show by name if this guard raised the error, otherwise None."""
        return None

    def restore(self) -> None:
        """Undo the changes of a failed step, after `failed_with` has recognized its error."""
        for variable, copy in self._copies.values():
            variable.assign(copy)

    def _copy(self, variables: Sequence[tf.Variable]) -> list[Any]:
        """Copy the values of variables, for `restore`; traced. Returns the ops."""
        copied = []
        for variable in variables:
            if id(variable) not in self._copies:
                with tf.init_scope(), tf.device(variable.device):
                    self._copies[id(variable)] = (variable, scratch_variable(variable, name="copy"))
            with tf.device(variable.device):
                copied.append(self._copies[id(variable)][1].assign(tf.identity(variable)))
        return copied


class AssertFinite(Guard):
    """A guard that makes the call fail at a non-finite step.

    An assertion costs almost nothing, while a conditional around the update takes a tenth of a small model's step. It
    requires towers whose steps may fail (`Placement.may_fail`). All towers check the same averages, so either all
    update or none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shown: list[list[str]] = []  # names of the values in the message, for each check of all traces
        self._begun: list[Any] = []
        self._checks: list[tf.Operation] = []
        self._graph: Any = None

    def begin(self, variables: Sequence[tf.Variable], step: tf.Tensor) -> None:
        self._begun, self._checks, self._graph = self._copy(variables), [], step.graph

    def apply(self, trace: TowerTrace, update: Update) -> None:
        rate = tf.convert_to_tensor(update.optimizer.learning_rate)
        finite = all_finite([*update.gradients, update.loss, rate])
        if update.when is not None:  # gradients that are not applied may be non-finite
            finite |= ~update.when
        check = self._require(finite, {"loss": update.loss, "learning_rate": rate})
        with tf.control_dependencies([check]):
            # A copy, since a merged update ignores the control dependencies of a single tower.
            when = None if update.when is None else tf.identity(update.when)
            update_if(when, update.optimizer, update.gradients, update.variables)

    def finish(
        self, outputs: Mapping[str, tf.Tensor], finite: tf.Tensor, after_run: Callable[[], None] | None
    ) -> tf.Tensor:
        if outputs:
            self._require(all_finite(list(outputs.values())), outputs)
        # Only the checks in the graph of the iteration, not those inside a user's loop.
        with tf.control_dependencies([check for check in self._checks if check.graph is self._graph]):
            return super().finish(outputs, finite, after_run)

    def _require(self, finite: tf.Tensor, shown: Mapping[str, tf.Tensor]) -> tf.Operation:
        """Create an op that fails unless the step is finite; its message shows the scalars."""
        with tf.control_dependencies(self._begun):
            values = tf.stack([tf.cast(value, tf.float32) for value in shown.values()])
            data = [tf.constant(_MARK), tf.constant(len(self._shown)), values]
            check = tf.raw_ops.Assert(condition=finite, data=data, summarize=len(shown))
        self._shown.append(list(shown))
        self._checks.append(check)
        return check

    def failed_with(self, error: tf.errors.OpError) -> Mapping[str, float] | None:
        found = _SHOWN.search(str(error.message))
        if found is None:
            return None
        return dict(zip(self._shown[int(found[1])], map(float, found[2].split()), strict=True))


class UndoCalls(Guard):
    """A guard for small models on one tower: a non-finite step undoes its call, which another guard repeats.

    No update waits for a check. The losses and learning rates are checked in every step. A gradient that is not finite
    stays in the optimizer's averages of gradients, where a check at the end of the call finds it. Together, waiting and
    the sums of all gradients would take a fifth of a small model's step.

    Args:
        checks_gradients: whether to check the gradients in every step, because a step may assign to the optimizer's
            variables.
    """

    reports_non_finite = True
    undoes_calls = True

    def __init__(self, *, checks_gradients: bool) -> None:
        super().__init__()
        self._checks_gradients = checks_gradients
        self._slots: dict[int, Any] = {}

    def begin_call(self, variables: Sequence[tf.Variable]) -> None:
        self._copy(variables)

    def apply(self, trace: TowerTrace, update: Update) -> None:
        checked = [update.loss, tf.convert_to_tensor(update.optimizer.learning_rate)]
        if self._checks_gradients or update.when is not None or not keeps_non_finite(update.optimizer):
            checked += update.gradients
        else:
            self._slots.update({id(variable): variable for variable in update.optimizer.variables})
        finite = all_finite(checked)
        if update.when is not None:  # gradients that are not applied may be non-finite
            finite |= ~update.when
        trace.applied.append(finite)
        super().apply(trace, update)

    def finish(
        self, outputs: Mapping[str, tf.Tensor], finite: tf.Tensor, after_run: Callable[[], None] | None
    ) -> tf.Tensor:
        super().finish(outputs, finite, after_run)
        return finite & all_finite(list(outputs.values()))

    def end_call(self, finite: tf.Tensor | bool = True) -> tf.Tensor:
        return tf.convert_to_tensor(finite) & all_finite(list(self._slots.values()))


class SkipNonFinite(Guard):
    """A guard that updates only if all values are finite; for any number of towers.

    Args:
        loss_scale: the loss scale to adapt, or None. If it makes a gradient overflow, only the update is skipped.
        ends: whether a non-finite step ends the call; otherwise only its update is skipped.
    """

    def __init__(self, loss_scale: LossScale | None = None, *, ends: bool = True) -> None:
        super().__init__()
        self._loss_scale = loss_scale
        self.reports_non_finite = ends
        self._before: list[tuple[tf.Variable, tf.Tensor]] = []

    def begin(self, variables: Sequence[tf.Variable], step: tf.Tensor) -> None:
        self._before = [(variable, _read(variable)) for variable in variables] if self.reports_non_finite else []

    def apply(self, trace: TowerTrace, update: Update) -> None:
        scale, loss = self._loss_scale, update.loss

        def apply_everywhere(
            strategy: tf.distribute.Strategy, finite: Any, gradients: list[Any], loss: Any, wanted: Any
        ) -> tf.Tensor:
            finite, loss, wanted = (strategy.experimental_local_results(one)[0] for one in (finite, loss, wanted))

            def apply() -> tf.Tensor:
                strategy.run(lambda given: update_with(update.optimizer, given, update.variables), args=(gradients,))
                return tf.constant(True)

            # The condition is outside the towers: an update inside a tower cannot be conditional. Gradients that are
            # not wanted may be non-finite.
            applied = tf.cond(finite & wanted, apply, lambda: ~wanted)
            if scale is not None:
                applied |= scale.is_overflow(loss)
                scale.adjust(finite, wanted & applied if self.reports_non_finite else wanted)
            return applied

        if self.reports_non_finite:
            # Add the rate to the loss, so that a non-finite rate does not count as an overflow of the gradients.
            loss = tf.cast(loss, tf.float32) + tf.cast(tf.convert_to_tensor(update.optimizer.learning_rate), tf.float32)
        wanted = tf.constant(True) if update.when is None else update.when
        arguments = (all_finite([*update.gradients, loss]), update.gradients, loss, wanted)
        trace.applied.append(tf.distribute.get_replica_context().merge_call(apply_everywhere, args=arguments))

    def finish(
        self, outputs: Mapping[str, tf.Tensor], finite: tf.Tensor, after_run: Callable[[], None] | None
    ) -> tf.Tensor:
        if not self.reports_non_finite:
            return super().finish(outputs, finite, after_run)
        if outputs:
            finite &= all_finite(list(outputs.values()))
        before = self._before

        def restore() -> tf.Tensor:
            for variable, value in before:
                variable.assign(value)
            return tf.constant(False)

        if not before and after_run is None:
            return finite
        return tf.cond(finite, lambda: super(SkipNonFinite, self).finish(outputs, finite, after_run), restore)


class LossScale:
    """A factor on the loss that keeps gradients in the range of float16 (arXiv:1710.03740).

    The factor halves after an overflow, whose update is skipped, and doubles after 2,000 updates without an overflow.

    Attributes:
        scale: the factor, a float32 scalar variable, at least 1.
        good_steps: number of updates since the factor changed, an int32 scalar variable.
    """

    def __init__(self) -> None:
        self.scale = tf.Variable(_INITIAL, trainable=False, name="loss_scale")
        self.good_steps = tf.Variable(0, trainable=False, name="good_steps")

    def variables(self) -> dict[str, tf.Variable]:
        """Return the variables for a checkpoint, by name."""
        return {"loss_scale/scale": self.scale, "loss_scale/good_steps": self.good_steps}

    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[Any]) -> list[Any]:
        """Compute the gradients of a loss multiplied by the factor, and divide them by it."""
        scaled = tape.gradient(loss, variables, output_gradients=tf.cast(self.scale, loss.dtype))
        return [divide(found, self.scale) for found in scaled]

    def is_overflow(self, loss: tf.Tensor) -> tf.Tensor:
        """Return whether the factor may be the only cause of non-finite gradients; traced, before `adjust`."""
        return tf.math.is_finite(tf.cast(loss, tf.float32)) & (self.scale > 1.0)

    def adjust(self, finite: tf.Tensor, counts: tf.Tensor) -> None:
        """Adapt the factor after an applied or skipped update, if the step counts; traced, once for all towers."""
        good = tf.where(finite, self.good_steps + 1, 0)
        grows = good >= _GROWTH_STEPS
        grown = tf.minimum(self.scale * 2.0, 2.0**60)
        smaller = tf.maximum(self.scale / 2.0, 1.0)
        scale = tf.where(finite, tf.where(grows, grown, self.scale), smaller)
        self.scale.assign(tf.where(counts, scale, self.scale))
        self.good_steps.assign(tf.where(counts, tf.where(grows, 0, good), self.good_steps))


def _read(variable: tf.Variable) -> tf.Tensor:
    with tf.device(variable.device):
        return tf.identity(variable)
