"""Settings: `-s model.discriminator_updates=1`."""

from __future__ import annotations

from prototrain.config import Config

config = Config(
    {
        "trainer.experiment_name": "gan",
        "trainer.print_interval": 1000,
        "trainer.summary_save_interval": 500,  # also how often pictures of what the generator draws are recorded
        "trainer.validation_step_interval": 1000,
        "trainer.validation_batches": 0,
        "trainer.checkpoint_save_interval": 2000,
        "model.num_steps": 10000,
        # The real digits of one step. The discriminator is updated once on each of so many parts of them, and then the
        # generator once.
        "model.batch_size": 128,
        "model.discriminator_updates": 2,
        # The networks.
        "model.noise_size": 32,
        "model.generator_units": [128, 256],
        "model.discriminator_units": [256, 128],
        # Each of the two gets an optimizer like this. Less momentum than usual, since what either has to learn changes
        # with the other (arXiv:1511.06434).
        "model.optimizer.method": "adam",
        "model.optimizer.adam.beta1": 0.5,
        "model.lr_schedule.method": "constant",
        "model.lr_schedule.constant.value": 5e-4,
        # What `prototrain action models.gan export` writes: the generator alone.
        "actions.export.inputs": ["noise"],
        "actions.export.outputs": ["samples"],
    }
)
