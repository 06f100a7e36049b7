"""Settings of an `Estimator`, and the result of a `model_fn`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.errors import ConfigError
from prototrain.optimizers import GradientProcessor


class ModeKeys:
    """Modes in which a `model_fn` is called."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


@dataclass
class RunConfig:
    """Settings of an `Estimator`'s runs.

    Attributes:
        model_dir: the directory of the run, if the `Estimator` is not given one. The `Estimator` sets it in its copy.
        tf_random_seed: the seed of random operations without an explicit seed; 1337 if None.
        save_summary_steps: the number of steps between summaries; None or 0 records none.
        save_checkpoints_steps: the number of steps between checkpoints.
        save_checkpoints_secs: the number of seconds between checkpoints; 600 if neither interval is given.
        keep_checkpoint_max: the number of checkpoints to keep; older ones are deleted. None or 0 keeps all.
        log_step_count_steps: the number of steps between printed scalars; None or 0 prints none.
        train_distribute: a `tf.distribute.MirroredStrategy` whose devices are used for training.

    Raises:
        ConfigError: both intervals of checkpoints are given.
    """

    model_dir: str | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    _: KW_ONLY
    keep_checkpoint_max: int | None = 5
    log_step_count_steps: int | None = 100
    train_distribute: tf.distribute.Strategy | None = None

    def __post_init__(self) -> None:
        if self.save_checkpoints_steps is None and self.save_checkpoints_secs is None:
            self.save_checkpoints_secs = 600.0
        elif self.save_checkpoints_steps is not None and self.save_checkpoints_secs is not None:
            raise ConfigError("RunConfig: give save_checkpoints_steps or save_checkpoints_secs, not both")

    def replace(self, **changes: Any) -> RunConfig:
        """Return a copy with some values replaced; one interval of checkpoints replaces the other.

        Raises:
            ConfigError: both intervals of checkpoints are given.
        """
        for name, other in (("steps", "secs"), ("secs", "steps")):
            if changes.get(f"save_checkpoints_{name}") is not None:
                changes.setdefault(f"save_checkpoints_{other}", None)
        return replace(self, **changes)

    @property
    def checkpoint_interval(self) -> dict[str, Any]:
        """The interval of checkpoints, as arguments of `Callback.every`."""
        return {"steps": self.save_checkpoints_steps, "seconds": self.save_checkpoints_secs}


@dataclass
class EstimatorSpec:
    """The result of a `model_fn` for one batch.

    Attributes:
        mode: the mode of the call, see `ModeKeys`.
        predictions: a tensor, or tensors by name; required in the mode PREDICT.
        loss: a scalar tensor; required in the modes TRAIN and EVAL.
        train_op: a Keras optimizer, an `OptimizerSpec`, or a list of these for separate variables; required in the mode
            TRAIN.
        eval_metric_ops: by name, Keras metrics after a call of `update_state`, or scalar tensors, which are averaged
            over the examples.
        export_outputs: the signatures of an exported model by name, each a tensor or tensors by name, such as those of
            `ClassificationOutput`. One of several must be named "serving_default". The predictions are exported if
            None.
        training_hooks: hooks in addition to those of `train`. Only the hooks of the first call of `model_fn` are used.
        loss_weight: a scalar, the total weight that the loss is a mean over, such as the sum of the example weights;
            the number of examples if None.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Any = None
    export_outputs: Mapping[str, Any] | None = None
    _: KW_ONLY
    training_hooks: Sequence[Any] = ()
    loss_weight: Any = None

    def __post_init__(self) -> None:
        self.eval_metric_ops = self.eval_metric_ops or {}
        self.training_hooks = self.training_hooks or ()


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer with options.

    Attributes:
        optimizer: a Keras optimizer.
        learning_rate: a function from the number of completed steps (an int64 tensor) to the learning rate, or to a
            function that returns it, as the decays of `tf.compat.v1.train` do. If None, the optimizer's learning rate
            is used.
        clip_norm: the maximum global L2 norm of the gradients, or None for no clipping.
        processors: functions from a list of (gradient, variable) pairs to such a list, see `prototrain.optimizers`.
        variables: the variables to train, or a regular expression that matches their names from the start. None trains
            all variables, and is an error if there are several optimizers.
    """

    optimizer: keras.optimizers.Optimizer
    learning_rate: Callable[[tf.Tensor], Any] | None = None
    clip_norm: float | None = None
    processors: Sequence[GradientProcessor] = ()
    variables: str | Sequence[Any] | None = None

    def rate(self, step: tf.Tensor) -> Any:
        """Return the learning rate after `step` completed steps."""
        assert self.learning_rate is not None
        found = self.learning_rate(step)
        # The decays of tf.compat.v1.train return a tensor in a graph, and a function when they run eagerly.
        return found() if callable(found) and not tf.is_tensor(found) else found


@dataclass
class TrainSpec:
    """The training part of `train_and_evaluate`.

    Attributes:
        input_fn: see `Estimator.train`.
        max_steps: the total number of steps of all runs in the directory; None trains until the data ends.
        hooks: see `Estimator.train`.

    Raises:
        ConfigError: `max_steps` is not a positive integer.
    """

    input_fn: Callable[..., tf.data.Dataset]
    max_steps: int | None = None
    hooks: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        self.max_steps = positive("max_steps", self.max_steps)


@dataclass
class EvalSpec:
    """The evaluation part of `train_and_evaluate`.

    Attributes:
        input_fn: see `Estimator.evaluate`.
        steps: the number of batches, or None for all.
        name: see `Estimator.evaluate`.
        exporters: an `Exporter` or a list of them; they are called after each evaluation.
        start_delay_secs: the minimum number of seconds before the first evaluation.
        throttle_secs: the minimum number of seconds between evaluations.

    Raises:
        ConfigError: `steps` is not a positive integer, or two exporters have the same name.
    """

    input_fn: Callable[..., tf.data.Dataset]
    steps: int | None = 100
    name: str | None = None
    _: KW_ONLY
    exporters: Any = None
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def __post_init__(self) -> None:
        self.steps = positive("steps", self.steps)
        given = self.exporters
        self.exporters = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
        names = [exporter.name for exporter in self.exporters]
        if len(set(names)) < len(names):
            raise ConfigError(f"EvalSpec: each of the exporters needs another name, not {', '.join(names)}")


def positive(what: str, number: Any) -> int | None:
    """Return a number of steps; a ConfigError if it is neither None nor a positive integer."""
    if number is not None and (not isinstance(number, int | np.integer) or number < 1):
        raise ConfigError(f"{what} must be a positive whole number, not {number!r}")
    return None if number is None else int(number)
