"""tensorpack in TensorFlow's v1 mode, with the layers of Keras 2, which supports it."""

from __future__ import annotations

import tempfile
from typing import Any

import tensorflow as tf
import tensorpack
import tf_keras

import benchmarks.workloads
from benchmarks.peers.of_tensorflow import in_memory
from benchmarks.peers.turns import LOG, SAVE, Batches, Turns

v1 = tf.compat.v1


def train(name: str, batches: Batches, turns: Turns) -> None:
    """Train with tensorpack's default callbacks, its monitors and a ModelSaver."""
    turns.begin()
    v1.disable_v2_behavior()
    benchmarks.workloads.keras = tf_keras  # Keras 3 has no v1 mode; the layers' names and arguments are the same
    workload = in_memory(name, batches)

    class Model(tensorpack.ModelDesc):  # type: ignore[misc]
        def inputs(self) -> list[tf.TensorSpec]:
            x = tf.TensorSpec((workload.batch, *workload.shape), tf.as_dtype(workload.dtype), "x")
            return [x, tf.TensorSpec((workload.batch,), tf.int32, "y")]

        def build_graph(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            inputs = tf_keras.Input(tensor=x)
            model = tf_keras.Model(inputs, workload.logits(inputs, True))
            for update in model.updates:  # batch statistics
                v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model.outputs[0])
            loss = tf.reduce_mean(losses, name="loss")
            tensorpack.summary.add_moving_summary(loss)
            return loss

        def optimizer(self) -> Any:
            return v1.train.AdamOptimizer(1e-3)

    class InTurns(tensorpack.Callback):  # type: ignore[misc]
        def _setup_graph(self) -> None:
            self.parameters = sum(variable.shape.num_elements() for variable in v1.trainable_variables())
            self.loss = self.get_tensors_maybe_in_tower(["loss:0"])[0]

        def _before_run(self, _: Any) -> Any:
            return v1.train.SessionRunArgs(self.loss) if self.global_step + 1 == turns.end else None

        def _after_run(self, _: Any, values: Any) -> None:
            self.last = values.results

        def _trigger_step(self) -> None:
            if self.global_step == turns.end:
                turns.over(float(self.last), self.parameters)

    data = v1.data.Dataset.from_tensor_slices(tuple(batches)).repeat().prefetch(tf.data.AUTOTUNE)  # as everybody's
    with tempfile.TemporaryDirectory() as scratch:
        tensorpack.logger.set_logger_dir(scratch, action="d")
        config = tensorpack.TrainConfig(
            model=Model(),
            data=tensorpack.TFDatasetInput(data),
            callbacks=[tensorpack.ModelSaver(), InTurns()],
            extra_callbacks=[
                tensorpack.MovingAverageSummary(),
                tensorpack.ProgressBar(),
                tensorpack.MergeAllSummaries(period=LOG),
                tensorpack.RunUpdateOps(),
            ],
            steps_per_epoch=min(SAVE, turns.total),
            max_epoch=-(-turns.total // SAVE),
        )
        tensorpack.launch_train_with_config(config, tensorpack.SimpleTrainer())
