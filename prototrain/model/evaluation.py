"""A compiled pass over held-out data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from prototrain.data.elements import batch_size
from prototrain.data.pipeline import prefetched
from prototrain.errors import DataError, StepError
from prototrain.step.calls import Packing, StopVariable, stage
from prototrain.system.tracebacks import cause

if TYPE_CHECKING:
    from prototrain.trainers.tower import TowerTrainer


class Evaluation:
    """A compiled pass over a dataset, or over its first batches, that averages the model's scalars.

    Args:
        trainer: whose model is evaluated.
        name: the dataset.

    Attributes:
        examples: how many examples the last pass was over.
    """

    examples = 0

    def __init__(self, trainer: TowerTrainer, name: str) -> None:
        self._trainer = trainer
        self._name = name
        self._dataset = prefetched(trainer.datasets[name], 1)
        self._packing = Packing()
        self._stop = StopVariable()
        self._call = tf.function(self._run, autograph=False)

    def run(self, batches: int) -> dict[str, float] | None:
        """Evaluate; see `TowerTrainer.evaluate`."""
        trainer = self._trainer
        self._stop.set(trainer.stop.signum is not None)
        trainer.stop.listeners.append(self._stop.set)
        dataset = self._dataset.take(batches) if batches else self._dataset
        try:
            weight, *sums = self._call(iter(dataset))
        except tf.errors.OpError as error:
            raise StepError(
                f"evaluating {self._name!r} at step {trainer.global_step} failed in the {stage(error)}: {cause(error)}"
            ) from error
        finally:
            trainer.stop.listeners.remove(self._stop.set)
        if trainer.stop.signum is not None:
            return None
        if not weight:
            raise DataError(f"dataset {self._name!r} is empty")
        self.examples = int(weight)
        return self._packing.unpack((sums[0] / tf.cast(weight, tf.float32), sums[1] / weight))

    def _run(self, iterator: Any) -> tuple[tf.Tensor, ...]:
        def goes_on(more: Any, *_: Any) -> Any:
            return more & ~self._stop.value

        def body(more: Any, weight: Any, single: Any, double: Any) -> tuple[Any, ...]:
            batch = iterator.get_next_as_optional()

            def add() -> tuple[Any, ...]:
                inputs = batch.get_value()
                outputs = self._trainer.evaluate_batch(inputs)
                size = tf.cast(batch_size(inputs), tf.float64)
                packed = self._packing.pack(outputs)
                return (
                    tf.constant(True),
                    weight + size,
                    _add(single, packed[0] * tf.cast(size, tf.float32)),
                    _add(double, packed[1] * size),
                )

            ended = (tf.constant(False), weight, single, double)
            after: tuple[Any, ...] = tf.cond(batch.has_value(), add, lambda: ended)
            return after

        scalar, vector = tf.TensorShape([]), tf.TensorShape([None])
        _, *sums = tf.while_loop(
            goes_on,
            body,
            (tf.constant(True), tf.constant(0.0, tf.float64), tf.zeros([0]), tf.zeros([0], tf.float64)),
            shape_invariants=(scalar, scalar, vector, vector),
        )
        return tuple(sums)


def _add(sums: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    # The sums begin as an empty vector: how many scalars a model has is known only once it is traced.
    return tf.cond(tf.size(sums) > 0, lambda: sums + values, lambda: values)
