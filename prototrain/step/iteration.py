"""What one iteration does on all towers, traced: hooks, the towers' steps, the mean over them, the guard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.errors import ModelError
from prototrain.step.result import ScalarPacker
from prototrain.step.trace import TowerTrace, tracing
from prototrain.step.watched import join, pick, write_scalar
from prototrain.towers import components

if TYPE_CHECKING:
    from prototrain.step.loop import StepPlan

_SUMMARY = "tf.summary/"

Batch = dict[str, Any]


class Iteration:
    """One iteration as a plan says, on all towers.

    Args:
        plan: what it does.
    """

    def __init__(self, plan: StepPlan) -> None:
        self._plan = plan
        self._packer = ScalarPacker()

    def __call__(
        self, inputs: Batch, step: tf.Tensor, *, watched: bool = False
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, dict[str, tf.Tensor]]:
        """Trace it.

        Args:
            inputs: a global batch.
            step: the number of completed steps, int64.
            watched: whether to return the plan's `watched_names`.

        Returns:
            the step's scalars by name, averaged over the towers; whether it counts as a step (a bool tensor: False if
            the guard found it not finite); the watched tensors by name.
        """
        plan = self._plan
        with behind(inputs):
            # Every tower's own copy, since assigning through a replicated variable would combine what the towers have.
            plan.guard.begin([copy for variable in plan.changed_early() for copy in components(variable)], step)
            plan.before_run(step)
            outputs, finite, seen = plan.placement.run(lambda part: self._tower(part, watched), inputs)
            seen = {name: join(plan.placement.local_results(value)) for name, value in seen.items()}
            # Both are the same in all towers.
            outputs = {name: plan.placement.local_results(value)[0] for name, value in outputs.items()}
            finite = plan.placement.local_results(finite)[0]
            after_run = plan.after_run
            follow = None if after_run is None else lambda: after_run(dict(outputs))
            counts = plan.guard.finish(outputs if plan.must_be_finite else {}, finite, follow)
        return outputs, counts, seen

    def _tower(self, inputs: Batch, watched: bool) -> tuple[dict[str, tf.Tensor], tf.Tensor, dict[str, tf.Tensor]]:
        """One tower's part of it."""
        trace = TowerTrace(self._plan.guard, watched)
        with behind(inputs), tracing(trace), tf.variable_creator_scope(self._warn_of_variable):
            outputs = self._plan.train_step(inputs)
        if not isinstance(outputs, Mapping):
            raise ModelError(f"train_step() must return a dict of scalar tensors, not {type(outputs).__name__}")
        seen = pick(self._plan.watched_names, trace.nets, inputs) if watched else {}
        outputs = {**trace.weighted_outputs(outputs, self._plan.placement), **trace.scalars}
        summaries = {f"{_SUMMARY}{number}": one.value for number, one in enumerate(trace.summaries)}
        outputs = self._average({**outputs, **summaries})
        for number, summary in enumerate(trace.summaries):
            write_scalar(summary, outputs.pop(f"{_SUMMARY}{number}"))
        return outputs, trace.finite(), seen

    def _average(self, outputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Average outputs and moving statistics over the towers, in one go; from inside a tower."""
        placement = self._plan.placement
        if placement.towers == 1:
            return outputs
        statistics = placement.moving_statistics()
        vectors = self._packer.pack(outputs)
        single, double, *means = placement.mean([*vectors, *map(tf.convert_to_tensor, statistics)])
        for variable, mean in zip(statistics, means, strict=True):
            variable.assign(mean)
        return self._packer.unstack((single, double))

    def _warn_of_variable(self, make: Callable[..., Any], **arguments: Any) -> Any:
        self._plan.log(
            f"WARNING: train_step() created the variable {arguments.get('name')!r}, which no checkpoint holds; "
            "build the model with self.build(), and make optimizers attributes of the trainer"
        )
        with tf.init_scope():  # the call is traced once only, and cannot begin with making a variable
            return make(**arguments)


def behind(inputs: Batch) -> Any:
    """Let nothing begin before the batch is there: a failed read must not find that a seed or a rate has moved on."""
    return tf.control_dependencies(tf.nest.flatten(inputs, expand_composites=True))
