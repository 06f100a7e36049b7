"""What an `Estimator` is given, and what a `model_fn` gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import keras
import tensorflow as tf

from prototrain.config_schema import nearest
from prototrain.errors import ConfigError, ModelError
from prototrain.optimizers import GradientProcessor

_HINTS = {
    "session_config": "there are no sessions; tf.config has settings of devices and threads",
    "device_fn": "put tf.device into model_fn",
    "eval_distribute": "evaluation runs on one device",
    "keep_checkpoint_every_n_hours": "give train() the hook ModelSaver(keep_every_n_hours=...)",
    "training_hooks": "give the hooks to train()",
    "training_chief_hooks": "give the hooks to train()",
    "evaluation_hooks": "an evaluation is one compiled call, which has no hooks",
    "prediction_hooks": "a prediction has no hooks",
    "scaffold": "the engine makes, saves and restores the variables; use warm_start_from to begin with others",
}


class ModeKeys:
    """What a `model_fn` is called for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class RunConfig:
    """How an `Estimator` runs.

    Args:
        model_dir: the directory of the run, unless the `Estimator` is given one.
        tf_random_seed: of everything random that has no seed of its own; 1337 if None.
        save_summary_steps: steps between recorded scalars and summaries.
        save_checkpoints_steps: steps between checkpoints.
        save_checkpoints_secs: seconds between checkpoints; 600 if neither is given.
        keep_checkpoint_max: older checkpoints are deleted; None or 0 keeps all.
        log_step_count_steps: steps between printed scalars.
        train_distribute: a `tf.distribute.MirroredStrategy`, to train on its devices.

    Raises:
        ConfigError: there is no such setting, or there are two intervals.
    """

    def __init__(
        self,
        model_dir: str | None = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int = 100,
        save_checkpoints_steps: int | None = None,
        save_checkpoints_secs: float | None = None,
        keep_checkpoint_max: int | None = 5,
        log_step_count_steps: int = 100,
        train_distribute: tf.distribute.Strategy | None = None,
        **unknown: Any,
    ) -> None:
        self.model_dir = model_dir
        self.tf_random_seed = tf_random_seed
        self.save_summary_steps = save_summary_steps
        self.save_checkpoints_steps = save_checkpoints_steps
        self.save_checkpoints_secs = save_checkpoints_secs
        self.keep_checkpoint_max = keep_checkpoint_max
        self.log_step_count_steps = log_step_count_steps
        self.train_distribute = train_distribute
        if unknown:
            _refuse("RunConfig", next(iter(unknown)), vars(self))
        if save_checkpoints_steps is not None and save_checkpoints_secs is not None:
            raise ConfigError("RunConfig: give save_checkpoints_steps or save_checkpoints_secs, not both")
        if save_checkpoints_steps is None and save_checkpoints_secs is None:
            self.save_checkpoints_secs = 600.0

    @property
    def checkpoint_interval(self) -> dict[str, Any]:
        """When checkpoints are written, as arguments of `Callback.every`."""
        if self.save_checkpoints_steps is not None:
            return {"steps": self.save_checkpoints_steps}
        return {"seconds": self.save_checkpoints_secs}


class EstimatorSpec:
    """What a `model_fn` makes of one batch.

    Args:
        mode: what it was called for, see `ModeKeys`.
        predictions: a tensor, or tensors by name; required to predict.
        loss: a scalar tensor; required to train and to evaluate.
        train_op: the Keras optimizer itself, or an `OptimizerSpec`; required to train.
        eval_metric_ops: by name, Keras metrics that `update_state` was called on, or scalar tensors, whose mean over
            the examples is taken.
        export_outputs: the outputs of an exported model, as ``{"serving_default": tensors by name}``; the predictions
            if None.

    Raises:
        ModelError: there is no such field.
    """

    def __init__(
        self,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        self.mode = mode
        self.predictions = predictions
        self.loss = loss
        self.train_op = train_op
        self.eval_metric_ops = dict(eval_metric_ops or {})
        self.export_outputs = export_outputs
        if unknown:
            _refuse("EstimatorSpec", next(iter(unknown)), vars(self), ModelError)


@dataclass(frozen=True)
class OptimizerSpec:
    """How to minimise the loss, where an optimizer alone does not say it.

    Attributes:
        optimizer: a Keras optimizer.
        learning_rate: from the number of completed steps (an int64 tensor) to the rate; the optimizer's own if None.
        clip_norm: all gradients are scaled down together to this L2 norm.
        processors: further functions from and to a list of (gradient, variable), see `prototrain.optimizers`.
        variables: a regular expression; only variables whose names it matches from their start are trained.
    """

    optimizer: keras.optimizers.Optimizer
    learning_rate: Callable[[tf.Tensor], Any] | None = None
    clip_norm: float | None = None
    processors: Sequence[GradientProcessor] = ()
    variables: str | None = None


@dataclass(frozen=True)
class TrainSpec:
    """The training part of `train_and_evaluate`.

    Attributes:
        input_fn: see `Estimator.train`.
        max_steps: the number of steps, over all runs in the directory; None: until the data ends.
        hooks: see `Estimator.train`.
    """

    input_fn: Callable[..., tf.data.Dataset]
    max_steps: int | None = None
    hooks: Sequence[Any] | None = None


class EvalSpec:
    """The evaluating part of `train_and_evaluate`.

    Args:
        input_fn: see `Estimator.evaluate`.
        steps: how many batches; None: all.
        name: see `Estimator.evaluate`.
        start_delay_secs: no evaluation before so many seconds of training.
        throttle_secs: no evaluation before so many seconds after the last one.

    Raises:
        ConfigError: there is no such field.
    """

    def __init__(
        self,
        input_fn: Callable[..., tf.data.Dataset],
        steps: int | None = 100,
        name: str | None = None,
        hooks: None = None,
        exporters: None = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
        **unknown: Any,
    ) -> None:
        if hooks:
            raise ConfigError("EvalSpec: an evaluation is one compiled call, which has no hooks")
        if exporters:
            raise ConfigError(
                "EvalSpec: there are no exporters; call export_saved_model() after train_and_evaluate(), and give "
                'TrainSpec the hook MinSaver("eval/loss") to keep the best checkpoint'
            )
        self.input_fn = input_fn
        self.steps = steps
        self.name = name
        self.start_delay_secs = start_delay_secs
        self.throttle_secs = throttle_secs
        if unknown:
            _refuse("EvalSpec", next(iter(unknown)), vars(self))


def _refuse(what: str, name: str, known: Mapping[str, Any], error: type[Exception] = ConfigError) -> NoReturn:
    hint = _HINTS.get(name, f"the nearest that it has is {nearest(name, known)}")
    raise error(f"{what} has no {name}: {hint}")
