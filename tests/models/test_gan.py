from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event

from models.gan.trainer import GANTrainer
from prototrain import ModelDict, load_model
from prototrain.cli import main
from prototrain.errors import ConfigError, ModelError, NonFiniteError
from prototrain.trainers.optimization import rate
from tests.models.exact import assert_resumes_exactly, train
from tests.tiny import saved_variables, tiny_model

UNITS = {"model.generator_units": [6], "model.discriminator_units": [6]}
SMALL = {**UNITS, "model.batch_size": 16, "model.noise_size": 3}


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model with few units; its config is restored after the test."""
    found = load_model("models.gan")
    monkeypatch.setattr(found.config, "data", {**found.config.data, **SMALL})
    return found


# A model without random ops, so that results can be compared


def plain_build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    net = ModelDict()
    with tf.name_scope("generator"):
        drawn = keras.layers.Dense(4, name="fc")(inputs["noise"])
    net.samples = tf.reshape(drawn, [-1, 2, 2, 1])
    with tf.name_scope("discriminator"):
        logits = keras.layers.Dense(1, name="fc")(tf.tanh(tf.concat([inputs["x"], drawn], 0)))
    real, drawn = tf.split(logits, 2)
    net.d_loss = tf.reduce_mean(tf.nn.softplus(-real) + tf.nn.softplus(drawn))
    net.g_loss = tf.reduce_mean(tf.nn.softplus(-drawn))
    net.d_accuracy = tf.reduce_mean(tf.cast(real > 0, tf.float32))
    return net


def plain_model(**config: Any) -> Any:
    """Six batches of eight; the noise of the very last example is not a number."""
    random = np.random.default_rng(3)
    x, noise = (random.normal(size=(48, width)).astype(np.float32) for width in (4, 2))
    noise[-1] = np.nan

    def datasets() -> dict[str, tf.data.Dataset]:
        return {"trn": tf.data.Dataset.from_tensor_slices({"x": x, "noise": noise}).batch(8)}

    chosen = {"model__optimizer__method": "sgd", "model__discriminator_updates": 2, "model__weight_decay__value": 0.1}
    return tiny_model(build=plain_build, datasets=datasets, **{**chosen, **config})


def by_hand(trainer: GANTrainer, steps: int, rate: float) -> dict[str, Any]:
    """Compute the expected variables step by step, without the trainer."""
    variables = {name: tf.Variable(tf.convert_to_tensor(value)) for name, value in trainer.variables.items()}
    batches = list(trainer.datasets["trn"])

    def update(network: str, loss: str, part: dict[str, tf.Tensor]) -> None:
        own = [variable for name, variable in variables.items() if name.startswith(network)]
        with tf.GradientTape() as tape:
            drawn = part["noise"] @ variables["generator/fc/kernel"] + variables["generator/fc/bias"]
            inputs = tf.tanh(tf.concat([part["x"], drawn], 0))
            real, fake = tf.split(inputs @ variables["discriminator/fc/kernel"] + variables["discriminator/fc/bias"], 2)
            d_loss = tf.reduce_mean(tf.nn.softplus(-real) + tf.nn.softplus(fake))
            total = {"d_loss": d_loss, "g_loss": tf.reduce_mean(tf.nn.softplus(-fake))}[loss]
            total += 0.05 * tf.add_n([tf.reduce_sum(variable**2) for variable in variables.values()])
        for gradient, variable in zip(tape.gradient(total, own), own, strict=True):
            variable.assign_sub(rate * gradient)

    for batch in batches[:steps]:
        parts = [{name: value[first::2] for name, value in batch.items()} for first in range(2)]
        for part in parts:
            update("discriminator", "d_loss", part)
        update("generator", "g_loss", parts[1])
    return variables


def test_updates_of_a_step() -> None:
    trainer = GANTrainer(plain_model(model__lr_schedule__constant__value=0.1), "cpu:2")
    expected = by_hand(trainer, 5, 0.1)
    # Only the second update of the sixth step is NaN; the first one is undone with it.
    with pytest.raises(NonFiniteError, match="not finite in step 6 "):
        train(trainer, 10)
    for name, value in expected.items():
        np.testing.assert_allclose(trainer.variables[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    iterations = [o.iterations.value for o in (trainer.discriminator_optimizer, trainer.optimizer)]
    assert [int(tf.convert_to_tensor(count)) for count in iterations] == [10, 5]


def test_resumed_run_is_exact(model: Any, experiment: Path) -> None:
    model.config.update({"model.lr_schedule.method": "exp", "model.lr_schedule.exp.value": 0.01})
    model.config.update({"model.lr_schedule.exp.decay_rate": 0.5, "model.lr_schedule.exp.decay_steps": 3})
    trainer = assert_resumes_exactly(lambda directory: GANTrainer(model, experiment=directory), experiment)
    saved = [name for name in saved_variables(trainer) if name.startswith(("optimizer/", "discriminator_optimizer/"))]
    assert {"optimizer/generator_fc0_kernel_0_velocity", "discriminator_optimizer/iteration"} <= set(saved)
    assert not any("discriminator" in name for name in saved if name.startswith("optimizer/"))
    assert rate(trainer.optimizer) == rate(trainer.discriminator_optimizer) == pytest.approx(0.01 * 0.5 ** (8 / 3))


def test_command_line_records_losses_and_images(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["trainer.summary_save_interval=2", "trainer.print_interval=2", "model.num_steps=5"]
    more = [part for setting in settings for part in ("-s", setting)]
    assert main(["run", "models.gan", "--trainer", "models.gan.trainer:GANTrainer", *more]) == 0
    said = capfd.readouterr().out
    assert "d_loss" in said and "g_loss" in said
    images: dict[int, Any] = {}
    for path in (tmp_path / "experiments" / "gan" / "summaries" / "trn").iterdir():
        for record in tf.data.TFRecordDataset(str(path)):
            event = Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.tag == "samples":
                    images[event.step] = tf.io.decode_png(value.tensor.string_val[2])
    assert sorted(images) == [2, 4, 5]
    # An update has half of the batch of 16: eight samples, of which four are shown, two by two.
    assert all(image.shape == (20, 20, 1) for image in images.values())
    assert not np.array_equal(images[2], images[5])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model__discriminator_updates": 3}, "8 examples do not divide evenly .* 3 discriminator updates"),
        ({"model__accumulate_steps": 2}, "model.accumulate_steps: GANTrainer does not accumulate gradients"),
    ],
)
def test_wrong_settings(config: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, ModelError), match=message):
        GANTrainer(plain_model(**config))
