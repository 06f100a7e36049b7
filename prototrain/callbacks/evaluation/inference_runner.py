"""Measuring anything on held-out data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from prototrain.callbacks.base import Callback, Priority
from prototrain.callbacks.evaluation.inferencer import Inferencer
from prototrain.callbacks.evaluation.validation import check_batches, no_such_dataset
from prototrain.data.batches import counted_examples
from prototrain.errors import CallbackError, DataError, StepError
from prototrain.model.evaluation import OR_BATCHES, CompiledPass, require_end
from prototrain.model.net import LOSS_WEIGHT
from prototrain.system.tracebacks import cause
from prototrain.system.waiting import announcing


class InferenceRunner(Callback):
    """Runs the model over a dataset, without training, and records the results of its inferencers.

    All batches go through the model in one compiled call on the first tower. Each example counts once, also in a short
    last batch. The same batches are used each time. Before the first step of a run it is tried out on two batches,
    without any effect.

    Args:
        dataset: the name of one of the model's datasets, or a dataset of the same kind.
        inferencers: what to measure.
        batches: how many batches from the start; 0 for all.
        prefix: what the scalars' names start with; the dataset's name if None, which is "inference" for one without.
        rehearse: whether it is tried out before the first step.

    Raises:
        CallbackError: an object in `inferencers` is not an inferencer, or `batches` is not a whole number from 0.
        DataError: at setup, if the dataset is not there, or all of one without an end is asked for.
    """

    priority = Priority.EVALUATE
    chief_only = False

    def __init__(
        self,
        dataset: str | tf.data.Dataset,
        inferencers: Inferencer | Sequence[Inferencer],
        *,
        batches: int = 0,
        prefix: str | None = None,
        rehearse: bool = True,
    ) -> None:
        check_batches("InferenceRunner", batches)
        self.dataset = dataset
        self.inferencers = [inferencers] if isinstance(inferencers, Inferencer) else list(inferencers)
        self.batches = batches
        self._rehearse = rehearse
        named = dataset if isinstance(dataset, str) else "inference"
        self.prefix = named if prefix is None else prefix
        for inferencer in self.inferencers:
            if not isinstance(inferencer, Inferencer):
                raise CallbackError(
                    f"InferenceRunner: not an inferencer: {inferencer!r}; wrap Keras metrics in KerasMetric"
                )

    def setup(self) -> None:
        found = self.dataset
        if isinstance(found, str):
            known = self.trainer.datasets or {}
            if found not in known:
                raise DataError(f"InferenceRunner: {no_such_dataset(found, known)}")
            found = known[found]
        if not self.batches:
            require_end(self.prefix, found, OR_BATCHES)
        self._counts: list[int] = []
        self._pass = CompiledPass(found, self._look_at, [tf.float64])

    def check_run(self) -> None:
        trainer = self.trainer
        for inferencer in self.inferencers:
            trainer.monitors.announce(self, self.prefix, inferencer.scalar_names())
        if not self._rehearse or trainer.global_step >= trainer.total_steps:
            return
        # Outside of the evaluation's scopes: to other callbacks this is not an evaluation.
        with announcing(f"trying out the inference on {self.prefix!r}", trainer.log), self._failing():
            self._pass.rehearse(self.prefix, trainer.stop, self.batches)
        for inferencer in self.inferencers:
            inferencer.reset()
        trainer.stop.check()

    def trigger(self) -> None:
        stop = self.trainer.stop
        for inferencer in self.inferencers:
            inferencer.reset()
        with self._failing(), self.trainer.evaluating():
            found = self._pass.run(stop, self.batches)
        stop.check()
        assert found is not None  # there was no stop
        batches, (sums,) = found
        if not batches:
            raise DataError(f"InferenceRunner: the dataset {self.dataset!r} is empty")
        self.trainer.monitors.put_scalars(self._results(sums), self.prefix)

    def _results(self, sums: tf.Tensor) -> dict[str, float]:
        found: dict[str, float] = {}
        rest = sums.numpy().tolist()
        for inferencer, count in zip(self.inferencers, self._counts, strict=True):
            for name, value in inferencer.result(rest[:count]).items():
                if name in found:
                    raise CallbackError(
                        f"InferenceRunner: two of its inferencers give {self.prefix}/{name}; give one of them a name"
                    )
                found[name] = value
            rest = rest[count:]
        return found

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            step = self.trainer.global_step
            raise StepError(f"InferenceRunner on {self.prefix!r} failed at step {step}: {cause(error)}") from error

    def _look_at(self, inputs: dict[str, Any]) -> list[tf.Tensor]:
        net = self.trainer.build(inputs, False)
        examples, agree = counted_examples(inputs)
        size = tf.where(agree, tf.cast(examples, tf.float64), 1.0)
        given = {name: value for name, value in inputs.items() if name != LOSS_WEIGHT}  # which is the model's to say
        found = [list(inferencer.sums({**given, **net}, size)) for inferencer in self.inferencers]
        self._counts = [len(sums) for sums in found]
        flat = [tf.cast(value, tf.float64) for sums in found for value in sums]
        return [tf.stack(flat) if flat else tf.zeros([0], tf.float64)]
