"""Measuring anything on held-out data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from prototrain.callbacks.base import Callback
from prototrain.callbacks.evaluation.inferencer import Inferencer
from prototrain.callbacks.evaluation.validation import check_batches, no_such_dataset
from prototrain.data.batches import counted_examples
from prototrain.errors import CallbackError, DataError, StepError
from prototrain.model.evaluation import CompiledPass
from prototrain.model.net import LOSS_WEIGHT
from prototrain.system.tracebacks import cause
from prototrain.system.waiting import announcing


class InferenceRunner(Callback):
    """Runs the model over a dataset, without training, and records the results of its inferencers.

        InferenceRunner("vld", [ScalarStats("loss"), ClassificationError()]).every(steps=100)

    All batches go through the model in one compiled call on the first tower, the same batches each time. Each example
    counts once, also in a short last batch. Before the first step of a run it is tried out on two batches, without any
    effect.

    Args:
        dataset: the name of one of the model's datasets, or a dataset of the same kind.
        inferencers: what to measure.
        batches: how many batches from the start; 0 for all.
        prefix: what the scalars' names start with; the dataset's name if None, "inference" for one without a name.

    Raises:
        CallbackError: an object in `inferencers` is not an inferencer; at setup, if `batches` is not a whole number
            from 0.
        DataError: at setup, if the dataset is missing, or all of one without an end is asked for.
    """

    chief_only = False

    def __init__(
        self,
        dataset: str | tf.data.Dataset,
        inferencers: Inferencer | Sequence[Inferencer],
        *,
        batches: int = 0,
        prefix: str | None = None,
    ) -> None:
        self.dataset = dataset
        self.inferencers = [inferencers] if isinstance(inferencers, Inferencer) else list(inferencers)
        self.batches = batches
        name = dataset if isinstance(dataset, str) else "inference"
        self.prefix = name if prefix is None else prefix
        for inferencer in self.inferencers:
            if not isinstance(inferencer, Inferencer):
                raise CallbackError(
                    f"InferenceRunner: not an inferencer: {inferencer!r}; wrap Keras metrics in KerasMetric"
                )

    def setup(self) -> None:
        dataset: Any = self.dataset
        if isinstance(dataset, str):
            known = self.trainer.datasets or {}
            if dataset not in known:
                raise DataError(f"InferenceRunner: {no_such_dataset(dataset, known)}")
            dataset = known[dataset]
        check_batches(self.name, self.prefix, dataset, self.batches)
        self._counts: list[int] = []  # how many sums each inferencer has
        self._pass = CompiledPass(dataset, self._sums, [tf.float64])

    def check_run(self) -> None:
        trainer = self.trainer
        for inferencer in self.inferencers:
            trainer.monitors.registry.announce(self, self.prefix, inferencer.scalar_names)
        if trainer.global_step >= trainer.total_steps:
            return
        # Outside of `evaluating`: to other callbacks this is not an evaluation.
        with announcing(f"trying out the inference on {self.prefix!r}", trainer.log), self._explaining():
            self._pass.rehearse(self.prefix, trainer.stop, self.batches)
        for inferencer in self.inferencers:
            inferencer.reset()
        trainer.stop.check()

    def trigger(self) -> None:
        stop = self.trainer.stop
        for inferencer in self.inferencers:
            inferencer.reset()
        with self._explaining(), self.trainer.evaluating():
            found = self._pass.run(stop, self.batches)
        stop.check()
        assert found is not None  # there was no stop
        batches, (sums,) = found
        if not batches:
            raise DataError(f"InferenceRunner: the dataset {self.dataset!r} is empty")
        scalars: dict[str, float] = {}
        rest = sums.numpy().tolist()
        for inferencer, count in zip(self.inferencers, self._counts, strict=True):
            for name, value in inferencer.result(rest[:count]).items():
                if name in scalars:
                    raise CallbackError(
                        f"InferenceRunner: two of its inferencers give {self.prefix}/{name}; give one of them a name"
                    )
                scalars[name] = value
            rest = rest[count:]
        self.trainer.monitors.put_scalars(scalars, self.prefix)

    def _sums(self, inputs: dict[str, Any]) -> list[tf.Tensor]:
        """The sums of all inferencers over one batch, in one vector; traced."""
        net = self.trainer.build(inputs, False)
        examples, agree = counted_examples(inputs)
        size = tf.where(agree, tf.cast(examples, tf.float64), 1.0)
        batch = {name: value for name, value in inputs.items() if name != LOSS_WEIGHT}  # only the model gives that
        sums = [list(inferencer.sums({**batch, **net}, size)) for inferencer in self.inferencers]
        self._counts = [len(each) for each in sums]
        flat = [tf.cast(value, tf.float64) for each in sums for value in each]
        return [tf.stack(flat) if flat else tf.zeros([0], tf.float64)]

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            step = self.trainer.global_step
            raise StepError(f"InferenceRunner on {self.prefix!r} failed at step {step}: {cause(error)}") from error
