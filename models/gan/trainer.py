"""A trainer of two competing networks, each with its own loss and optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from prototrain import SyncReplicatedTrainer
from prototrain.errors import ConfigError, ModelError
from prototrain.optimizers import make_optimizer


class GANTrainer(SyncReplicatedTrainer):
    """In each step, updates the discriminator ``model.discriminator_updates`` times, and then the generator once.

    The model's `build` returns "d_loss", "g_loss" and "samples" (images), and its variable names begin with
    ``discriminator/`` or ``generator/``.

    Args:
        model: the model to train.
        towers: as for `SyncReplicatedTrainer`; by default one, or all GPUs if there are any.
        experiment: the directory of the run, or None to write no files.

    Attributes:
        discriminator, generator: the variables of the networks.
        optimizer: the generator's, whose learning rate `LearningRate` sets.
        discriminator_optimizer: always has the same rate.

    Raises:
        ConfigError: a batch does not divide, or a key has no meaning here.
        ModelError: a network has no variables.
    """

    def create_optimizers(self) -> None:
        self._check_config()
        self.generator, self.discriminator = self._variables_of("generator"), self._variables_of("discriminator")
        self.optimizer = make_optimizer(self.config)
        same = {**self.optimizer.get_config(), "learning_rate": lambda: self.optimizer.learning_rate}
        self.discriminator_optimizer = type(self.optimizer).from_config(same)
        # Under these names a checkpoint holds them.
        self.register_optimizer("optimizer", self.optimizer, self.generator)
        self.register_optimizer("discriminator_optimizer", self.discriminator_optimizer, self.discriminator)

    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        updates = self.config["model.discriminator_updates"]
        # Taken by turns and not one after the other, so that all towers together have the parts that one would have.
        parts = [{name: value[first::updates] for name, value in inputs.items()} for first in range(updates)]
        for part in parts:
            d_net = self._update(self.discriminator, "d_loss", part, self.discriminator_optimizer)
        g_net = self._update(self.generator, "g_loss", parts[-1], self.optimizer)
        # In the steps that are not recorded this costs nothing. The noise is always the same when not training.
        tf.summary.image("samples", tiled(self.build(parts[-1], False)["samples"]))
        return {"d_loss": d_net["d_loss"], "d_accuracy": d_net["d_accuracy"], "g_loss": g_net["g_loss"]}

    def _update(
        self, variables: list[tf.Variable], loss: str, inputs: dict[str, Any], optimizer: keras.optimizers.Optimizer
    ) -> Mapping[str, Any]:
        """Update one network with the gradient of its loss."""
        with tf.GradientTape() as tape:
            net = self.build(inputs, True)
            total = net[loss] + self.weight_decay_loss()
        gradients = self.gradients(tape, total, variables)
        # Averages over the towers, clips as the config says, and leaves everything as it is where something is NaN.
        self.apply_gradients(list(zip(gradients, variables, strict=True)), loss=total, optimizer=optimizer)
        return net

    def _variables_of(self, network: str) -> list[tf.Variable]:
        found = [variable for name, variable in self.trainable.items() if name.startswith(f"{network}/")]
        if not found:
            raise ModelError(f"GANTrainer trains variables named {network}/...; there are {', '.join(self.trainable)}")
        return found

    def _check_config(self) -> None:
        updates = self.config["model.discriminator_updates"]
        if type(updates) is not int or updates < 1:
            raise ConfigError(f"model.discriminator_updates: expected an int >= 1, got {updates!r}")
        if self.global_batch % (self.towers * updates):
            raise ConfigError(
                f"model.batch_size: {self.global_batch} examples do not divide evenly into {self.towers} "
                f"tower{'s' * (self.towers > 1)} with {updates} discriminator updates each"
            )
        if self.config["model.accumulate_steps"] > 1:
            raise ConfigError("model.accumulate_steps: GANTrainer does not accumulate gradients; leave it at 1")


def tiled(images: tf.Tensor, border: int = 1) -> tf.Tensor:
    """Arranges images in a square; surplus images are omitted.

    Args:
        images: [batch, height, width, channels].
        border: the number of black pixels around each.

    Returns:
        [1, side * height, side * width, channels], where heights and widths include the borders.
    """
    side = tf.cast(tf.sqrt(tf.cast(tf.shape(images)[0], tf.float32)), tf.int32)
    images = tf.pad(images[: side * side], [[0, 0], [border, border], [border, border], [0, 0]])
    height, width, channels = images.shape[1:]
    rows = tf.transpose(tf.reshape(images, [side, side, height, width, channels]), [0, 2, 1, 3, 4])
    return tf.reshape(rows, [1, side * height, side * width, channels])
