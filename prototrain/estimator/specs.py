"""The arguments of an `Estimator`, and the result of a `model_fn`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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
        model_dir: the directory of the run, unless the `Estimator` is given one; that of the `Estimator` in its own.
        tf_random_seed: seed of everything random that has none; 1337 if None.
        save_summary_steps: steps between recorded scalars and summaries; None or 0 records none.
        save_checkpoints_steps: steps between checkpoints.
        save_checkpoints_secs: seconds between checkpoints; 600 if neither is given.
        keep_checkpoint_max: older checkpoints are deleted; None or 0 keeps all.
        log_step_count_steps: steps between printed scalars; None or 0 prints none.
        train_distribute: a `tf.distribute.MirroredStrategy`, to train on its devices.

    Raises:
        ConfigError: there are two intervals.
    """

    model_dir: str | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int | None = 5
    log_step_count_steps: int | None = 100
    train_distribute: tf.distribute.Strategy | None = None

    def __post_init__(self) -> None:
        if self.save_checkpoints_steps is None and self.save_checkpoints_secs is None:
            self.save_checkpoints_secs = 600.0
        elif self.save_checkpoints_steps is not None and self.save_checkpoints_secs is not None:
            raise ConfigError("RunConfig: give save_checkpoints_steps or save_checkpoints_secs, not both")

    def replace(self, **changes: Any) -> RunConfig:
        """A copy with other values; one interval of checkpoints replaces the other.

        Raises:
            ConfigError: both intervals are given.
        """
        for name, other in (("steps", "secs"), ("secs", "steps")):
            if changes.get(f"save_checkpoints_{name}") is not None:
                changes.setdefault(f"save_checkpoints_{other}", None)
        return replace(self, **changes)

    @property
    def checkpoint_interval(self) -> dict[str, Any]:
        """When checkpoints are written, as arguments of `Callback.every`."""
        return {"steps": self.save_checkpoints_steps, "seconds": self.save_checkpoints_secs}


@dataclass
class EstimatorSpec:
    """The result of a `model_fn` for one batch.

    Attributes:
        mode: what it was called for, see `ModeKeys`.
        predictions: a tensor, or tensors by name; required to predict.
        loss: a scalar tensor; required to train and to evaluate.
        train_op: the Keras optimizer itself, or an `OptimizerSpec`; or a list of these, each for other variables;
            required to train.
        eval_metric_ops: by name, Keras metrics that `update_state` was called on, or scalar tensors, whose mean over
            the examples is taken.
        export_outputs: the signatures of an exported model by name, each a tensor, tensors by name, a `PredictOutput`,
            `ClassificationOutput` or `RegressionOutput`; one of several is called "serving_default". The predictions if
            None.
        training_hooks, training_chief_hooks: hooks besides those that `train` is given; those of the first call of
            `model_fn` count.
        loss_weight: what the loss is a mean over, such as the sum of the weights of a batch, a scalar; the number of
            examples if None.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Any = None
    export_outputs: Mapping[str, Any] | None = None
    training_hooks: Sequence[Any] | None = None
    training_chief_hooks: Sequence[Any] | None = None
    loss_weight: Any = None

    def __post_init__(self) -> None:
        self.eval_metric_ops = self.eval_metric_ops or {}

    @property
    def hooks(self) -> list[Any]:
        """All hooks for training."""
        return [*(self.training_hooks or ()), *(self.training_chief_hooks or ())]


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer with further options.

    Attributes:
        optimizer: a Keras optimizer.
        learning_rate: from the number of completed steps (an int64 tensor) to the rate, or to a function that gives it,
            such as those of `tf.compat.v1.train` return; the optimizer's own if None.
        clip_norm: all gradients are scaled down together to this L2 norm.
        processors: further functions from and to a list of (gradient, variable), see `prototrain.optimizers`.
        variables: a regular expression; only variables whose names it matches from their start are trained. Or the
            variables themselves.
    """

    optimizer: keras.optimizers.Optimizer
    learning_rate: Callable[[tf.Tensor], Any] | None = None
    clip_norm: float | None = None
    processors: Sequence[GradientProcessor] = ()
    variables: str | Sequence[Any] | None = None

    def rate(self, step: tf.Tensor) -> Any:
        """The learning rate after so many steps."""
        assert self.learning_rate is not None
        found = self.learning_rate(step)
        # What is decayed in TensorFlow 1's way is a number where graphs are made, and elsewhere a function of it.
        return found() if callable(found) and not tf.is_tensor(found) else found


@dataclass
class WarmStartSettings:
    """The variables that a new run takes over from a checkpoint.

    Attributes:
        ckpt_to_initialize_from: a checkpoint, the directory of a run, or the prefix of a TensorFlow checkpoint.
        vars_to_warm_start: regular expressions, one or a list; variables whose names one of them matches from their
            start are taken over, where they are of the same shape. All if None.
        var_name_to_prev_var_name: what variables are called there, by their names here, where that is something else;
            several may be taken from one.

    Raises:
        ConfigError: a value is of another kind.
    """

    ckpt_to_initialize_from: str | Path
    vars_to_warm_start: str | Sequence[str] | None = ".*"
    var_name_to_prev_var_name: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.ckpt_to_initialize_from, str | Path):
            kind = type(self.ckpt_to_initialize_from).__name__
            raise ConfigError(f"warm_start_from must be a directory or WarmStartSettings, not {kind}")
        given = [".*"] if self.vars_to_warm_start is None else self.vars_to_warm_start
        if not given or not all(isinstance(one, str) for one in given):
            raise ConfigError(f"vars_to_warm_start takes regular expressions for names of variables, not {given!r}")

    @property
    def exclude(self) -> str:
        """A regular expression for the names of variables that keep their values."""
        chosen = self.vars_to_warm_start or ".*"
        return f"(?!{'|'.join(f'(?:{one})' for one in ([chosen] if isinstance(chosen, str) else chosen))})"


@dataclass
class TrainSpec:
    """The training part of `train_and_evaluate`.

    Attributes:
        input_fn: see `Estimator.train`.
        max_steps: the number of steps, over all runs in the directory; None: until the data ends.
        hooks: see `Estimator.train`.

    Raises:
        ConfigError: `max_steps` is not a positive whole number.
    """

    input_fn: Callable[..., tf.data.Dataset]
    max_steps: int | None = None
    hooks: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        self.max_steps = positive("max_steps", self.max_steps)


@dataclass
class EvalSpec:
    """The evaluating part of `train_and_evaluate`.

    Attributes:
        input_fn: see `Estimator.evaluate`.
        steps: how many batches; None: all.
        name: see `Estimator.evaluate`.
        exporters: one or several, see `Exporter`; they are called after each evaluation.
        start_delay_secs: no evaluation before so many seconds of training.
        throttle_secs: no evaluation before so many seconds after the last one.

    Raises:
        ConfigError: `steps` is not a positive whole number, or an exporter is none.
    """

    input_fn: Callable[..., tf.data.Dataset]
    steps: int | None = 100
    name: str | None = None
    exporters: Any = None
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def __post_init__(self) -> None:
        self.steps = positive("steps", self.steps)
        given = self.exporters
        self.exporters = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
        names = [getattr(exporter, "name", None) for exporter in self.exporters]
        for exporter, name in zip(self.exporters, names, strict=True):
            if not callable(getattr(exporter, "export", None)) or not isinstance(name, str) or names.count(name) > 1:
                raise ConfigError(
                    f"EvalSpec: exporters must be Exporters, each with another name, not "
                    f"{type(exporter).__name__} called {name!r}"
                )


def positive(what: str, number: Any) -> int | None:
    """Check a number of steps, where there is one.

    Raises:
        ConfigError: it is not a positive whole number.
    """
    if number is None:
        return None
    if not isinstance(number, int | np.integer) or number < 1:
        raise ConfigError(f"{what} must be a positive whole number, not {number!r}")
    return int(number)
